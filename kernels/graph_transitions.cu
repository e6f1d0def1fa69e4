// arch: 75+
// Two kernels that stamp a word: one before it writes it, the other behind the read that saw it.
extern "C" __global__ void write_word(volatile u32 *word, u32 value, u64 *stamp) {
    *stamp = globaltimer_ns();
    *word = value;
}

extern "C" __global__ void see_word(const volatile u32 *word, u32 value, u64 *stamp, u32 tries) {
    while (*word != value)
        if (!tries--) return;
    *stamp = globaltimer_ns();
}
