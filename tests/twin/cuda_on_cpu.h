/* What device code needs of CUDA to be compiled for the CPU, one thread a block: the caller sets blockIdx. */
#include <cmath>
#include <cstring>

#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(threads)

struct uint4 {
    unsigned x, y, z, w;
};
inline long long clock64() { return 0; }

struct Index {
    unsigned x;
};
Index threadIdx = {0}, blockIdx = {0}, blockDim = {1}, gridDim = {1};

inline float __uint_as_float(unsigned bits) {
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}
inline unsigned __float_as_uint(float number) {
    unsigned bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
}
inline unsigned __float2uint_rn(float number) { return (unsigned)lrintf(number); }
inline float __logf(float number) { return logf(number); }
inline float __cosf(float number) { return cosf(number); }
inline void atomicAdd(double* sum, double number) { *sum += number; }
/* A warp of one thread gets nothing from the others. */
inline double __shfl_xor_sync(unsigned, double, unsigned) { return 0.0; }
