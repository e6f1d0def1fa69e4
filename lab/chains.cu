// Periods of chains of kernels with the CUDA runtime API, for lab/chains.py: nvcc -O3 -o chains chains.cu
// "chains one" launches kernels into one stream only; "chains two" has launched into a second stream before.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#define CHECK(call)                                                                     \
    do {                                                                                \
        cudaError_t code = (call);                                                      \
        if (code != cudaSuccess) {                                                      \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(code));               \
            return 1;                                                                   \
        }                                                                               \
    } while (0)

__global__ void empty() {}
__global__ void add_1(unsigned *words) { words[blockIdx.x * blockDim.x + threadIdx.x] += 1; }
__global__ void hold(long long cycles) {
    long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
}

int main(int count, char **arguments) {
    cudaStream_t stream, second;
    cudaEvent_t first, last;
    unsigned *words;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&first));
    CHECK(cudaEventCreate(&last));
    CHECK(cudaMalloc(&words, 8 << 20));
    CHECK(cudaMemset(words, 0, 8 << 20));
    if (count > 1 && !strcmp(arguments[1], "two")) {
        CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
        for (int i = 0; i < 32; i++) empty<<<1, 32, 0, second>>>();
        CHECK(cudaDeviceSynchronize());
    }
    // A single block takes 0.75 to 0.87 us by the place of its line in the L2, so these add at 64 places in turn.
    int turn = 0;
    struct Kind {
        const char *name;
        std::function<void()> launch;
    };
    const Kind kinds[] = {
        {"empty 1x32", [&] { empty<<<1, 32, 0, stream>>>(); }},
        {"empty 132x256", [&] { empty<<<132, 256, 0, stream>>>(); }},
        {"add 1x32", [&] { add_1<<<1, 32, 0, stream>>>(words + 16640 * (turn++ % 64)); }},
        {"add 132x256", [&] { add_1<<<132, 256, 0, stream>>>(words); }},
        {"add 1056x128", [&] { add_1<<<1056, 128, 0, stream>>>(words); }},
    };
    printf("{");
    for (const Kind &kind : kinds) {
        double period_us[2];
        for (int graph = 0; graph < 2; graph++) {
            float median_ms[2];
            const int lengths[2] = {graph ? 1000 : 400, graph ? 200 : 100};
            for (int which = 0; which < 2; which++) {
                cudaGraph_t captured;
                cudaGraphExec_t executable;
                if (graph) {
                    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
                    for (int i = 0; i < lengths[which]; i++) kind.launch();
                    CHECK(cudaStreamEndCapture(stream, &captured));
                    CHECK(cudaGraphInstantiate(&executable, captured, 0));
                    CHECK(cudaGraphLaunch(executable, stream));
                }
                std::vector<float> taken_ms;
                for (int repeat = 0; repeat < 17; repeat++) {
                    hold<<<1, 1, 0, stream>>>(6000000);  // 3 ms, in which everything behind it is queued
                    CHECK(cudaEventRecord(first, stream));
                    if (graph) {
                        CHECK(cudaGraphLaunch(executable, stream));
                    } else {
                        for (int i = 0; i < lengths[which]; i++) kind.launch();
                    }
                    CHECK(cudaEventRecord(last, stream));
                    CHECK(cudaStreamSynchronize(stream));
                    float elapsed_ms;
                    CHECK(cudaEventElapsedTime(&elapsed_ms, first, last));
                    taken_ms.push_back(elapsed_ms);
                }
                std::sort(taken_ms.begin(), taken_ms.end());
                median_ms[which] = taken_ms[taken_ms.size() / 2];
            }
            period_us[graph] = (median_ms[0] - median_ms[1]) * 1e3 / (lengths[0] - lengths[1]);
        }
        printf("%s\"%s\": [%.4f, %.4f]", &kind == kinds ? "" : ", ", kind.name, period_us[0], period_us[1]);
    }
    printf("}\n");
    return 0;
}
