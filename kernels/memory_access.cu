// arch: 75+
// Accesses other than streaming: with few bytes in flight, strided, in the order of a hash, by atomic additions, and with
// bank conflicts in shared memory.

const u32 LINE_WORDS = 32;
const u32 ODD = 0x9E3779B1u;

// Adds up the sums of a block's threads, modulo 2**32, into the block's own word of `parts`.
__device__ __forceinline__ void leave(u32 sum, u32 *parts) {
    __shared__ u32 total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    atomicAdd(&total, sum);
    __syncthreads();
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

// -- a read of the whole buffer with a known number of loads in flight ------------------------------------------------

// The remainder of a size that is not a multiple of 16: whole words, then the last bytes as the low bytes of a word.
__device__ __forceinline__ u32 sum_of_tail(const uint4 *set, u64 size_bytes) {
    const u32 *words = (const u32 *)set;
    u32 sum = 0;
#pragma unroll 1
    for (u64 i = size_bytes / 16 * 4; i < size_bytes / 4; i++) sum += words[i];
#pragma unroll 1
    for (u32 k = 0; k < size_bytes % 4; k++) sum += (u32)((const u8 *)(words + size_bytes / 4))[k] << 8 * k;
    return sum;
}

// Each thread keeps exactly `loads` reads in flight from the first to the last round: when one has arrived, it is added
// up and the next is issued. An unrolled loop would have more in flight.
template <int loads>
__device__ __forceinline__ void read_with(const uint4 *set, u64 size_bytes, u32 *parts) {
    u64 whole = size_bytes / 16, step = grid_threads(), rounds = whole / (loads * step);
    const uint4 *at = set + thread_index();
    uint4 found[loads];
    u32 sum = 0;
    if (rounds > 0) {
#pragma unroll
        for (int k = 0; k < loads; k++, at += step) found[k] = load_past_l1(at);
#pragma unroll 1
        for (u64 round = 1; round < rounds; round++) {
#pragma unroll
            for (int k = 0; k < loads; k++, at += step) {
                sum += sum_of(found[k]);
                found[k] = load_past_l1(at);
            }
        }
#pragma unroll
        for (int k = 0; k < loads; k++) sum += sum_of(found[k]);
    }
#pragma unroll 1
    for (; at < set + whole; at += step) sum += sum_of(load_past_l1(at));
    if (thread_index() == 0) sum += sum_of_tail(set, size_bytes);
    leave(sum, parts);
}

#define READ_WITH(loads)                                                                                               \
    extern "C" __global__ void __launch_bounds__(1024)                                                                 \
    read_with_##loads(const uint4 *set, u64 size_bytes, u32 *parts) {                                                  \
        read_with<loads>(set, size_bytes, parts);                                                                      \
    }
READ_WITH(1)
READ_WITH(2)
READ_WITH(4)
READ_WITH(8)

// -- strided words ----------------------------------------------------------------------------------------------------

// The value written to a word: cheap to compute and different at every place.
__device__ __forceinline__ u32 written(u64 word, u32 seed) {
    return ((u32)word + (u32)(word >> 32) * 0x85EBCA6Bu) * ODD + seed;
}

// The first pass of a thread where `step` threads share a pass and `at_once` passes run at the same time; surplus
// threads get none.
__device__ __forceinline__ u64 first_pass(u64 step, u64 at_once, u32 passes) {
    u64 pass = thread_index() / step;
    return pass < at_once ? pass : passes;
}

// Each of the `passes` reads `count` words with a stride of `stride` words; the next pass begins a line further. Each
// thread has eight words in flight. Where a pass has fewer words than there are threads, several passes run at the same
// time, or most SMs would be idle.
extern "C" __global__ void read_apart(const u32 *words, u64 count, u64 stride, u32 passes, u32 *parts) {
    const int ahead = 8;
    u64 step = min(count, grid_threads()), at_once = grid_threads() / step, lane = thread_index() % step;
    u32 sum = 0;
    for (u64 pass = first_pass(step, at_once, passes); pass < passes; pass += at_once) {
        const u32 *from = words + pass * LINE_WORDS + lane * stride;
        for (u64 i = lane; i < count; i += ahead * step, from += ahead * step * stride) {
            u32 found[ahead];
#pragma unroll
            for (int k = 0; k < ahead; k++) found[k] = i + k * step < count ? from[k * step * stride] : 0;
#pragma unroll
            for (int k = 0; k < ahead; k++) sum += found[k];
        }
    }
    leave(sum, parts);
}

extern "C" __global__ void write_apart(u32 *words, u64 count, u64 stride, u32 passes, u32 seed) {
    u64 step = min(count, grid_threads()), at_once = grid_threads() / step, lane = thread_index() % step;
    for (u64 pass = first_pass(step, at_once, passes); pass < passes; pass += at_once) {
        u64 word = pass * LINE_WORDS + lane * stride;
#pragma unroll 8
        for (u64 i = lane; i < count; i += step, word += step * stride) words[word] = written(word, seed);
    }
}

// Writes the complement of what will be written, also to the bytes after the last whole word.
extern "C" __global__ void poison(u32 *words, u64 size_bytes, u32 seed) {
    u64 whole = size_bytes / 4;
    for (u64 i = thread_index(); i < whole; i += grid_threads()) words[i] = ~written(i, seed);
    if (thread_index() < size_bytes % 4) {
        ((u8 *)(words + whole))[thread_index()] = (u8)(~written(whole, seed) >> 8 * thread_index());
    }
}

// Lowers `first_wrong` to the first wrong byte: words of the walk must be written, all others must still be poison.
extern "C" __global__ void
differ_apart(const u32 *words, u64 size_bytes, u64 count, u64 stride, u32 passes, u32 seed, u64 *first_wrong) {
    u64 whole = size_bytes / 4;
    for (u64 i = thread_index(); i < whole; i += grid_threads()) {
        u64 within = i % stride;
        bool touched = i / stride < count && within % LINE_WORDS == 0 && within / LINE_WORDS < passes;
        u32 wanted = touched ? written(i, seed) : ~written(i, seed);
        if (words[i] != wanted) atomicMin(first_wrong, 4 * i);
    }
    if (thread_index() < size_bytes % 4) {
        u8 wanted = (u8)(~written(whole, seed) >> 8 * thread_index());
        if (((const u8 *)(words + whole))[thread_index()] != wanted) atomicMin(first_wrong, 4 * whole + thread_index());
    }
}

// -- expected sums, computed from the pattern of `fill` in link.cu without reading memory -----------------------------

// The sum of the words that read_apart reads; of the last one only the bits of `last` count.
extern "C" __global__ void expected_sum(u64 count, u64 stride, u32 passes, u32 seed, u32 last, u32 *sum) {
    u32 own = 0;
    for (u64 t = thread_index(); t < count * passes; t += grid_threads()) {
        u32 word = word_at(t % count * stride + t / count * LINE_WORDS, seed);
        own += t + 1 < count * passes ? word : word & last;
    }
    atomicAdd(sum, own);
}

// -- words of 8 bytes in the order of a hash --------------------------------------------------------------------------

// The place of access i. It is a bijection of the numbers below 2**bits, because multiplications by odd numbers and
// xors of a word with its own upper bits are invertible. It hashes at most 32 bits. Further bits are taken from the low
// end of i, so that neighbouring threads are far apart in larger sets as well.
__device__ __forceinline__ u64 place(u64 i, u32 bits) {
    u32 within = bits < 32 ? bits : 32, beyond = bits - within;
    u32 mask = ~0u >> (32 - within), shift = (within + 1) / 2;
    u32 top = (u32)(i & ((1ull << beyond) - 1));
    u32 x = ((u32)(i >> beyond) ^ top * 0x27D4EB2Fu) & mask;
    x = (x * 0x9E3779B1u + 0x7F4A7C15u) & mask;
    x ^= x >> shift;
    x = x * 0x85EBCA77u & mask;
    x ^= x >> shift;
    x = x * 0xC2B2AE3Du & mask;
    x ^= x >> shift;
    return (u64)top << 32 | x;
}

// `count` accesses pass through the 2**bits words count / 2**bits times. They bypass the SM's own cache, so that the L2
// or DRAM serves them even in small sets.
extern "C" __global__ void gather(const uint2 *words, u32 bits, u64 count, u32 *parts) {
    const int ahead = 8;
    u64 step = grid_threads();
    u32 sum = 0;
    for (u64 i = thread_index(); i < count; i += ahead * step) {
        uint2 found[ahead];
#pragma unroll
        for (int k = 0; k < ahead; k++) {
            found[k] = i + k * step < count ? __ldcg(words + place(i + k * step, bits)) : make_uint2(0, 0);
        }
#pragma unroll
        for (int k = 0; k < ahead; k++) sum += found[k].x + found[k].y;
    }
    leave(sum, parts);
}

extern "C" __global__ void scatter(uint2 *words, u32 bits, u64 count, u32 seed) {
#pragma unroll 8
    for (u64 i = thread_index(); i < count; i += grid_threads()) {
        u64 at = place(i, bits);
        words[at] = make_uint2(written(2 * at, seed), written(2 * at + 1, seed));
    }
}

extern "C" __global__ void update(u64 *words, u32 bits, u64 count) {
#pragma unroll 8
    for (u64 i = thread_index(); i < count; i += grid_threads()) {
        asm volatile("red.global.add.u64 [%0], %1;" ::"l"(words + place(i, bits)), "l"(1ull) : "memory");
    }
}

// The least and the greatest increase of any word since the words were filled.
extern "C" __global__ void growth(const u64 *words, u64 count, u32 seed, u64 *bounds) {
    u64 least = ~0ull, most = 0;
    for (u64 i = thread_index(); i < count; i += grid_threads()) {
        u64 grown = words[i] - ((u64)word_at(2 * i + 1, seed) << 32 | word_at(2 * i, seed));
        least = min(least, grown);
        most = max(most, grown);
    }
    atomicMin(bounds, least);
    atomicMax(bounds + 1, most);
}

// -- atomic additions -------------------------------------------------------------------------------------------------

// The threads of a warp add different numbers to a word that is known only at run time, so that the compiler cannot
// combine the additions of a warp.
__device__ __forceinline__ void add(int *word, int value) {
    asm volatile("red.global.add.s32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ void add(float *word, float value) {
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(word), "f"(value) : "memory");
}

__device__ __forceinline__ void add_shared(int *word, int value) {
    u32 at = (u32)__cvta_generic_to_shared(word);
    asm volatile("red.shared.add.s32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}

__device__ __forceinline__ void add_shared(float *word, float value) {
    u32 at = (u32)__cvta_generic_to_shared(word);
    asm volatile("red.shared.add.f32 [%0], %1;" ::"r"(at), "f"(value) : "memory");
}

__device__ __forceinline__ int number_of_thread() {
    return threadIdx.x % 4 + 1;
}

// A thread's word is its number masked by `keep`: no bits, those of its warp, or all. Every second call subtracts what
// the previous call added; the thread whose number equals that of the word adds 1 in each call. The last block to end
// counts the call, after all blocks have read the count.
template <typename Word>
__device__ __forceinline__ void add_to_global(Word *words, u32 keep, u32 adds, u32 *calls, u32 *ended) {
    u32 thread = (u32)thread_index(), own = thread & keep;
    bool takes_away = *calls % 2;
    Word value = (Word)(takes_away ? -number_of_thread() : number_of_thread());
    if (own == thread) add(words + own, (Word)1);
#pragma unroll 8
    for (u32 i = 0; i < adds; i++) add(words + own, value);
    __syncthreads();
    if (threadIdx.x == 0 && atomicInc(ended, gridDim.x - 1) == gridDim.x - 1) *calls += 1;
}

// The same in the block's shared memory, one word for each thread, filled from `first` and copied to `last`.
template <typename Word>
__device__ __forceinline__ void add_to_shared(const Word *first, Word *last, u32 keep, u32 adds) {
    extern __shared__ u32 memory[];
    Word *words = (Word *)memory;
    u32 own = threadIdx.x & keep;
    Word value = (Word)number_of_thread();
    words[threadIdx.x] = first[thread_index()];
    __syncthreads();
#pragma unroll 8
    for (u32 i = 0; i < adds; i++) add_shared(words + own, value);
    __syncthreads();
    last[thread_index()] = words[threadIdx.x];
}

#define ADD(type, Word)                                                                                                \
    extern "C" __global__ void add_global_##type(Word *words, u32 keep, u32 adds, u32 *calls, u32 *ended) {            \
        add_to_global(words, keep, adds, calls, ended);                                                                \
    }                                                                                                                  \
    extern "C" __global__ void add_shared_##type(const Word *first, Word *last, u32 keep, u32 adds) {                  \
        add_to_shared(first, last, keep, adds);                                                                        \
    }
ADD(int32, int)
ADD(fp32, float)

// -- bank conflicts of shared memory ----------------------------------------------------------------------------------

// Each chain of reads cycles through 32 words that are `stride` words apart. A word holds the address of the next one,
// so that every load waits for the one before it. In each step the lanes of a warp read all 32 words or, with `apart`
// 0, all the same word; either way each step has the conflicts of the stride. `ends` gets the end of each chain.
template <u32 chains>
__device__ __forceinline__ void round_the_words(u32 stride, u32 apart, u32 reads, u64 *cycles, u32 *ends) {
    extern __shared__ u32 memory[];
    u32 base = (u32)__cvta_generic_to_shared(memory), step = stride * 4, at[chains];
    if (threadIdx.x < 32) memory[threadIdx.x * stride] = base + (threadIdx.x + 1) % 32 * step;
#pragma unroll
    for (u32 k = 0; k < chains; k++) at[k] = base + (threadIdx.x * apart + threadIdx.x / 32 + k) % 32 * step;
    __syncthreads();
    u64 begin = clock64();
#pragma unroll 8
    for (u32 i = 0; i < reads; i++) {
#pragma unroll
        for (u32 k = 0; k < chains; k++) asm volatile("ld.shared.u32 %0, [%0];" : "+r"(at[k])::"memory");
    }
#pragma unroll
    for (u32 k = 0; k < chains; k++) {
        if (at[k] == ~0u) __trap();  // the comparison makes the clock wait for the data
    }
    __syncthreads();
    if (threadIdx.x == 0) cycles[0] = clock64() - begin;
#pragma unroll
    for (u32 k = 0; k < chains; k++) ends[k * blockDim.x + threadIdx.x] = (at[k] - base) / step;
}

extern "C" __global__ void round_alone(u32 stride, u32 apart, u32 reads, u64 *cycles, u32 *ends) {
    round_the_words<1>(stride, apart, reads, cycles, ends);
}

extern "C" __global__ void __launch_bounds__(1024)
round_together(u32 stride, u32 apart, u32 reads, u64 *cycles, u32 *ends) {
    round_the_words<4>(stride, apart, reads, cycles, ends);
}
