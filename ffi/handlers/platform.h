// What host code below the handlers needs of the platform; each handler's file defines it.
#pragma once

namespace jaxgemm {

// The number of the device that this thread uses.
int CurrentDevice();

// While one lives, this thread may allocate and load code although it is capturing a graph.
class AllowedToAllocate {
 public:
  AllowedToAllocate();
  ~AllowedToAllocate();
  AllowedToAllocate(const AllowedToAllocate&) = delete;
  AllowedToAllocate& operator=(const AllowedToAllocate&) = delete;

 private:
  int previous_mode_;
};

}  // namespace jaxgemm
