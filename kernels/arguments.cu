// arch: 75+
// An empty kernel with a parameter block of ARGUMENT_BYTES, a compile-time constant.

#ifndef ARGUMENT_BYTES
#define ARGUMENT_BYTES 64
#endif

struct Arguments {
    char bytes[ARGUMENT_BYTES];
};

extern "C" __global__ void arguments(const Arguments block) {}
