// arch: 75+
// Draws and rounds the operands of matrix products on the GPU, and multiplies matrices by vectors in float64 to check
// results.

#define VECTORS 32
#define SPREAD 40.0

enum Data { NORMAL, UNIFORM, CONSTANT, ONES, ZEROS, SPARSE };

// A type of `bits` bits: one sign bit, `fraction` bits of fraction, and an exponent with `bias`; `most` is the code of
// the largest number. A type without a fraction is a signed integer.
struct Format {
    u32 bits, fraction, bias, most;
};

__device__ __forceinline__ float power_of_two(int exponent) { return __uint_as_float((u32)(exponent + 127) << 23); }

// The code nearest to a number, with ties to even and saturation. bf16 has the exponent of fp32, so its subnormal
// numbers need no special case.
__device__ __forceinline__ u32 encoded(float number, Format format) {
    const u32 raw = __float_as_uint(number), size = raw & 0x7FFFFFFFu;
    const u32 cut = 23 - format.fraction;
    u32 code;
    if (format.bias < 127 && (size >> 23) < 128 - format.bias)  // a subnormal number is a multiple of the smallest one
        code = __float2uint_rn(__uint_as_float(size) * power_of_two((int)(format.bias + format.fraction) - 1));
    else
        code = ((size + (1u << (cut - 1)) - 1 + (size >> cut & 1)) >> cut) - ((127 - format.bias) << format.fraction);
    return (code < format.most ? code : format.most) | raw >> 31 << (format.bits - 1);
}

__device__ __forceinline__ double decoded(u32 code, Format format) {
    const u32 size = code & ((1u << (format.bits - 1)) - 1);
    float number;
    if (size > format.most)
        number = __uint_as_float(0x7FC00000u);  // infinity or NaN, which no comparison accepts
    else if (format.bias < 127 && size >> format.fraction == 0)
        number = (float)size * power_of_two(1 - (int)(format.bias + format.fraction));
    else
        number = __uint_as_float((size << (23 - format.fraction)) + ((127 - format.bias) << 23));
    return code >> (format.bits - 1) & 1 ? -number : number;
}

__device__ __forceinline__ double number_at(const void* matrix, u64 place, Format format) {
    if (format.bits == 64) return ((const double*)matrix)[place];
    if (format.bits == 32)
        return format.fraction ? (double)((const float*)matrix)[place] : (double)((const int*)matrix)[place];
    if (format.bits == 16) return decoded(((const unsigned short*)matrix)[place], format);
    if (format.bits == 4) return decoded(((const u8*)matrix)[place / 2] >> (place % 2 * 4) & 15, format);
    return format.fraction ? decoded(((const u8*)matrix)[place], format) : (double)((const signed char*)matrix)[place];
}

// Leaves out two of every four consecutive places.
__device__ __forceinline__ bool left_out(u64 place, u32 seed) {
    const u32 chosen = hash32(word_at(place / 4, ~seed)), first = chosen & 3, second = (first + 1 + (chosen >> 2) % 3) & 3;
    return place % 4 == first || place % 4 == second;
}

// The number at a place, with at least as many digits as any type has.
__device__ __forceinline__ double drawn(u64 place, u32 seed, u32 data, bool whole) {
    if (data == ZEROS || (data == SPARSE && left_out(place, seed))) return 0.0;
    if (data == ONES) return 1.0;
    if (data == CONSTANT) return whole ? 48.0 : 0.75;
    const u32 first = hash32(word_at(place, seed) ^ seed * 0x85EBCA6Bu);  // twice, as one would shift a sequence
    const u32 second = hash32(first + 0x9E3779B9u), third = hash32(second + 0x9E3779B9u);
    if (data == UNIFORM) {
        if (whole) return (double)(int)(first % 255) - 127.0;
        return (double)(int)first * 0x1p-31 + (double)(int)third * 0x1p-63;
    }
    // Box and Muller (1958): two uniform numbers give a normal one.
    const float uniform = (float)first * 0x1p-32f + 0x1p-33f, angle = (float)second * (6.2831853f * 0x1p-32f);
    const float normal = sqrtf(fmaxf(-2.0f * __logf(uniform), 0.0f)) * __cosf(angle);
    if (!whole) return (double)normal + (double)(int)third * 0x1p-55;
    return fmin(fmax(rint(SPREAD * (double)normal), -127.0), 127.0);
}

// Fills a matrix with `elements` numbers; the count must be even for types of 4 bits.
extern "C" __global__ void draw(void* matrix, u64 elements, u32 seed, u32 data, u32 bits, u32 fraction, u32 bias, u32 most) {
    const Format format = {bits, fraction, bias, most};
    const u64 step = (u64)gridDim.x * blockDim.x, units = bits == 4 ? elements / 2 : elements;
    for (u64 place = (u64)blockIdx.x * blockDim.x + threadIdx.x; place < units; place += step) {
        if (bits == 4) {
            const u32 low = encoded((float)drawn(2 * place, seed, data, false), format);
            ((u8*)matrix)[place] = (u8)(low | encoded((float)drawn(2 * place + 1, seed, data, false), format) << 4);
            continue;
        }
        const double number = drawn(place, seed, data, fraction == 0);
        if (bits == 64) ((double*)matrix)[place] = number;
        else if (bits == 32) ((float*)matrix)[place] = (float)number;
        else if (bits == 16) ((unsigned short*)matrix)[place] = (unsigned short)encoded((float)number, format);
        else ((u8*)matrix)[place] = fraction ? (u8)encoded((float)number, format) : (u8)(signed char)number;
    }
}

// out[v][k] += sum over rows n of matrix[n][k] vectors[v][n]. A thread computes one k of a stripe, a block some of the
// rows.
extern "C" __global__ void __launch_bounds__(128) transposed_times(
    const void* matrix, u64 rows, u64 width, const double* vectors, double* out, u64 block_rows, u32 bits, u32 fraction,
    u32 bias, u32 most) {
    const Format format = {bits, fraction, bias, most};
    const u64 stripes = (width + blockDim.x - 1) / blockDim.x;
    const u64 k = blockIdx.x % stripes * blockDim.x + threadIdx.x, first = blockIdx.x / stripes * block_rows;
    const u64 last = first + block_rows < rows ? first + block_rows : rows;
    if (k >= width) return;
    double sums[VECTORS] = {};
    for (u64 n = first; n < last; ++n) {
        const double number = number_at(matrix, n * width + k, format);
#pragma unroll
        for (u32 v = 0; v < VECTORS; ++v) sums[v] += number * vectors[v * rows + n];
    }
#pragma unroll
    for (u32 v = 0; v < VECTORS; ++v) atomicAdd(out + v * width + k, sums[v]);
}

// out[v][i] += sum over k of matrix[i][k] vectors[v][k]. A block computes one row i.
extern "C" __global__ void __launch_bounds__(128) times(
    const void* matrix, u64 rows, u64 width, const double* vectors, double* out, u32 bits, u32 fraction, u32 bias, u32 most) {
    const Format format = {bits, fraction, bias, most};
    const u64 row = blockIdx.x;
    double sums[VECTORS] = {};
    for (u64 k = threadIdx.x; k < width; k += blockDim.x) {
        const double number = number_at(matrix, row * width + k, format);
#pragma unroll
        for (u32 v = 0; v < VECTORS; ++v) sums[v] += number * vectors[v * width + k];
    }
    const u32 lane = threadIdx.x % 32;
    double own = 0.0;  // lane v holds the warp's sum for vector v
#pragma unroll
    for (u32 v = 0; v < VECTORS; ++v) {
        double total = sums[v];
        for (u32 other = 16; other; other /= 2) total += __shfl_xor_sync(0xFFFFFFFFu, total, other);
        if (lane == v) own = total;
    }
    atomicAdd(out + lane * rows + row, own);
}
