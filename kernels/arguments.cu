// arch: 75+
// An empty kernel with a parameter block of ARGUMENT_BYTES, given when it is compiled.

#ifndef ARGUMENT_BYTES
#define ARGUMENT_BYTES 64
#endif

struct Arguments {
    char bytes[ARGUMENT_BYTES];
};

extern "C" __global__ void arguments(const Arguments block) {}
