// Does nothing: the driver is asked how many of its clusters a device runs at once. They lie within
// groups of multiprocessors, whose sizes differ from chip to chip, so it cannot be computed.
extern "C" __global__ void __cluster_dims__(8, 1, 1) cluster_of_eight() {}
