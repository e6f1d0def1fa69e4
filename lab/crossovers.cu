// Times of each way to do one thing, for lab/crossovers.py: nvcc -O3 -o crossovers crossovers.cu
// A line on standard input is a case, and a line of seconds, one for each way, answers it:
//   copy DIRECTION BYTES                        pageable, pinned and registered memory, which is there already
//   allocate_pinned DIRECTION BYTES TIMES       pageable memory mapped, touched, copied and unmapped; the same pinned
//   register DIRECTION BYTES TIMES              memory that is there, copied; registered, copied and unregistered
//   pieces COUNT BYTES                          a copy for each piece, one batched call, a kernel that gathers them
//   graph KERNELS NANOSECONDS STEPS             a step's kernels in a stream, as a graph with its share of the making
//   wait NANOSECONDS                            for a kernel: by spinning, yielding, blocking
// Ways take turns; each time is the median over the turns. Data are compared before the first turn.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#define CHECK(call)                                                                     \
    do {                                                                                \
        cudaError_t code = (call);                                                      \
        if (code != cudaSuccess) {                                                      \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(code));               \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

using Way = std::function<void()>;
constexpr int TURNS = 7;
constexpr double TURN_S = 2e-3;
constexpr size_t PAGE = 4096;
cudaStream_t stream;

double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double timed_s(const Way &way, int times) {
    double begin_s = now_s();
    for (int i = 0; i < times; i++) way();
    return (now_s() - begin_s) / times;
}

std::vector<double> in_turn(const std::vector<Way> &ways) {
    std::vector<std::vector<double>> samples(ways.size());
    std::vector<int> times;
    for (const Way &way : ways) {
        way();
        times.push_back(std::min(2000.0, std::max(1.0, TURN_S / timed_s(way, 2))));
    }
    for (int turn = 0; turn < TURNS; turn++)
        for (size_t i = 0; i < ways.size(); i++) samples[i].push_back(timed_s(ways[i], times[i]));
    std::vector<double> medians;
    for (auto &one : samples) {
        std::sort(one.begin(), one.end());
        medians.push_back(one[TURNS / 2]);
    }
    return medians;
}

void wait() { CHECK(cudaStreamSynchronize(stream)); }

void copy(bool to_gpu, char *device, char *host, size_t bytes) {
    if (to_gpu)
        CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream));
    else
        CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
}

char *mapped(size_t bytes) {
    char *memory = (char *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    for (size_t at = 0; at < bytes; at += PAGE) memory[at] = 1;
    return memory;
}

std::vector<double> copies(bool to_gpu, size_t bytes) {
    char *device, *pinned, *pageable = mapped(bytes), *registered = mapped(bytes);
    CHECK(cudaMalloc(&device, bytes));
    CHECK(cudaHostAlloc(&pinned, bytes, 0));
    memset(pinned, 1, bytes);
    CHECK(cudaHostRegister(registered, bytes, 0));
    std::vector<Way> ways;
    for (char *host : {pageable, pinned, registered})
        ways.push_back([=] {
            copy(to_gpu, device, host, bytes);
            wait();
        });
    auto found = in_turn(ways);
    CHECK(cudaHostUnregister(registered));
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaFree(device));
    munmap(registered, bytes);
    munmap(pageable, bytes);
    return found;
}

std::vector<double> pinning(bool allocated, bool to_gpu, size_t bytes, int times) {
    char *device, *there = mapped(bytes);
    CHECK(cudaMalloc(&device, bytes));
    auto copied = [=](char *host) {
        for (int i = 0; i < times; i++) {
            copy(to_gpu, device, host, bytes);
            wait();
        }
    };
    std::vector<Way> ways;
    if (allocated) {
        ways.push_back([=] {
            char *host = mapped(bytes);
            copied(host);
            munmap(host, bytes);
        });
        ways.push_back([=] {
            char *host;
            CHECK(cudaHostAlloc(&host, bytes, 0));
            copied(host);
            CHECK(cudaFreeHost(host));
        });
    } else {
        ways.push_back([=] { copied(there); });
        ways.push_back([=] {
            CHECK(cudaHostRegister(there, bytes, 0));
            copied(there);
            CHECK(cudaHostUnregister(there));
        });
    }
    auto found = in_turn(ways);
    CHECK(cudaFree(device));
    munmap(there, bytes);
    return found;
}

__global__ void gather(const char *from, char *to, size_t bytes, size_t pitch) {
    const uint4 *source = (const uint4 *)(from + blockIdx.x * pitch);
    uint4 *target = (uint4 *)(to + blockIdx.x * pitch);
    for (size_t i = threadIdx.x; i < bytes / sizeof(uint4); i += blockDim.x) target[i] = source[i];
}

std::vector<double> pieces(int count, size_t bytes) {
    size_t pitch = 2 * bytes;
    char *device, *host;
    CHECK(cudaMalloc(&device, count * pitch));
    CHECK(cudaHostAlloc(&host, count * pitch, 0));
    std::vector<const void *> sources;
    std::vector<void *> targets;
    for (size_t at = 0; at < count * pitch; at++) host[at] = (char)(at * 2654435761u >> 13);
    for (int i = 0; i < count; i++) {
        sources.push_back(host + i * pitch);
        targets.push_back(device + i * pitch);
    }
    std::vector<size_t> sizes(count, bytes);
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    size_t first = 0;
    std::vector<Way> ways = {
        [&] {
            for (int i = 0; i < count; i++) copy(true, (char *)targets[i], (char *)sources[i], bytes);
            wait();
        },
        [&] {
            CHECK(cudaMemcpyBatchAsync(targets.data(), sources.data(), sizes.data(), count, &attributes, &first, 1,
                                       stream));
            wait();
        },
        [&] {
            gather<<<count, 256, 0, stream>>>(host, device, bytes, pitch);
            CHECK(cudaGetLastError());
            wait();
        },
    };
    std::vector<char> back(count * pitch);
    for (const Way &way : ways) {
        CHECK(cudaMemset(device, 0, count * pitch));
        CHECK(cudaDeviceSynchronize());
        way();
        CHECK(cudaMemcpy(back.data(), device, count * pitch, cudaMemcpyDeviceToHost));
        for (int i = 0; i < count; i++)
            if (memcmp(back.data() + i * pitch, host + i * pitch, bytes)) {
                fprintf(stderr, "piece %d of %d of %zu bytes did not arrive\n", i, count, bytes);
                exit(1);
            }
    }
    auto found = in_turn(ways);
    CHECK(cudaFreeHost(host));
    CHECK(cudaFree(device));
    return found;
}

__global__ void lasting(long long nanoseconds) {
    long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - begin < nanoseconds);
}

std::vector<double> graph(int kernels, long long nanoseconds, int steps) {
    auto submit = [=] {
        for (int i = 0; i < kernels; i++) lasting<<<1, 32, 0, stream>>>(nanoseconds);
        CHECK(cudaGetLastError());
    };
    cudaGraphExec_t made = nullptr;
    auto make = [&] {
        cudaGraph_t captured;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        submit();
        CHECK(cudaStreamEndCapture(stream, &captured));
        CHECK(cudaGraphInstantiate(&made, captured, 0));
        CHECK(cudaGraphUpload(made, stream));
        wait();
        CHECK(cudaGraphDestroy(captured));
    };
    std::vector<double> making;
    for (int i = 0; i < TURNS; i++) {
        if (made) CHECK(cudaGraphExecDestroy(made));
        making.push_back(timed_s(make, 1));
    }
    std::sort(making.begin(), making.end());
    auto found = in_turn({[&] {
                              submit();
                              wait();
                          },
                          [&] {
                              CHECK(cudaGraphLaunch(made, stream));
                              wait();
                          }});
    found[1] += making[TURNS / 2] / steps;
    CHECK(cudaGraphExecDestroy(made));
    return found;
}

std::vector<double> waits(long long nanoseconds) {
    std::vector<std::vector<double>> samples(3);
    const unsigned modes[] = {cudaDeviceScheduleSpin, cudaDeviceScheduleYield, cudaDeviceScheduleBlockingSync};
    for (int turn = 0; turn < TURNS; turn++)
        for (int mode = 0; mode < 3; mode++) {
            CHECK(cudaSetDeviceFlags(modes[mode]));
            Way step = [=] {
                lasting<<<1, 32, 0, stream>>>(nanoseconds);
                wait();
            };
            step();
            samples[mode].push_back(timed_s(step, std::min(100.0, std::max(1.0, TURN_S * 1e9 / nanoseconds))));
        }
    CHECK(cudaSetDeviceFlags(cudaDeviceScheduleSpin));
    std::vector<double> medians;
    for (auto &one : samples) {
        std::sort(one.begin(), one.end());
        medians.push_back(one[TURNS / 2]);
    }
    return medians;
}

int main() {
    CHECK(cudaSetDeviceFlags(cudaDeviceScheduleSpin));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    char line[256], kind[32], direction[8];
    size_t bytes;
    int count, times;
    long long nanoseconds;
    while (fgets(line, sizeof line, stdin)) {
        std::vector<double> found;
        if (sscanf(line, "copy %7s %zu", direction, &bytes) == 2)
            found = copies(!strcmp(direction, "h2d"), bytes);
        else if (sscanf(line, "pieces %d %zu", &count, &bytes) == 2)
            found = pieces(count, bytes);
        else if (sscanf(line, "graph %d %lld %d", &count, &nanoseconds, &times) == 3)
            found = graph(count, nanoseconds, times);
        else if (sscanf(line, "wait %lld", &nanoseconds) == 1)
            found = waits(nanoseconds);
        else if (sscanf(line, "%31s %7s %zu %d", kind, direction, &bytes, &times) == 4)
            found = pinning(!strcmp(kind, "allocate_pinned"), !strcmp(direction, "h2d"), bytes, times);
        else {
            fprintf(stderr, "no case: %s", line);
            return 1;
        }
        for (double seconds : found) printf("%.9g ", seconds);
        printf("\n");
        fflush(stdout);
    }
    return 0;
}
