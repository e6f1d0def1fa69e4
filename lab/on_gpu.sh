#!/usr/bin/env bash
# Everything that needs a real GPU, in one go: lab/on_gpu.sh FOLDER [STEP …]; results and logs go to FOLDER.
# Steps: tests, sanitizer, repeats (five runs of three rounds and their overlap), against_nvbandwidth, against_peers,
# against_nccl_tests, against_babelstream, against_chase and against_torch (another program in turn, see
# lab/against.py; NVBANDWIDTH, NCCL_TESTS and BABELSTREAM name the programs), chains (C++, CuPy, PyTorch and microbench
# in turn, see lab/chains.py), held_out (the model against steps that it never saw; HELD_OUT names the file of an
# earlier session), real_steps (twelve steps of PyTorch against their predictions), programs (traces and recordings of
# nineteen programs against their true times), example (the worked example of docs/), watch_overhead (WATCH_ROUNDS rounds
# of it), without_nvmath, presets (a whole run in its time), reference and reference_further (the bundled run anew, both
# on one GPU, in half an hour; REFERENCE names the file that they grow; LIMIT cuts them off as many seconds after this
# script began, and a call with the same FOLDER goes on), reference_peers (that of two GPUs), pack (as they are bundled).
# COSTS names a run with the costs for real_steps and programs; without it they are measured. SANITIZED names the files of
# tests that the sanitizer looks at, all by default.
# Run from the root of a clean checkout: each run records its commit. PYTHON names the interpreter.
set -uo pipefail
folder=${1:?usage: lab/on_gpu.sh FOLDER [STEP …]}
shift
steps=("$@")
[ "${#steps[@]}" -gt 0 ] || steps=(tests sanitizer repeats presets reference reference_further pack)
reference=${REFERENCE:-$folder/nvidia-h200.json}
peers=$folder/nvidia-h200-x2.json
python=${PYTHON:-python3}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} COLUMNS=120
failed=0

run() { "$python" -m microbench "$@"; }

tests() {
    TWIN_REPORT=$folder/twin.jsonl "$python" -m pytest -q -m gpu -p no:cacheprovider tests \
        >"$folder/tests.txt" 2>&1 || failed=1
    tail -5 "$folder/tests.txt"
    cat "$folder/twin.jsonl"
}

sanitizer() {
    # Timing cannot hold under it: each kernel and op once is what it is for. Copies that wait behind a gate are left out,
    # as initcheck waits for each copy; kernels between GPUs are copy16 again. API errors are not reported, as
    # cuda.bindings asks for every entry point it knows, also those that an older driver does not have.
    local once="every_op or flag_is_seen or gate or recorded or dependent or answers or resident or graph_has or own_clock"
    once+=" or stamped_in_its_order or changes_arrive or of_every_kind or keep_their_edges or as_many_as or carries_values"
    once+=" or (copies_arrive and 1000003) or every_byte or end_at_their_line or pieces or managed or other_gpu"
    once+=" or (every_shape and 4099) or (word_of_a_set and 81920) or word_by_word or walks_end_where"
    once+=" or few_threads or lie_apart or (order_of_a_hash and not 268435456) or additions_arrive"
    once+=" or engines_write or (every_kernel_is_right and numba and 1000003) or results_are_right or a_bracket_may"
    once+=" or (every_candidate_multiplies and cublaslt)"
    # Racecheck looks at shared memory, and takes minutes over millions of accesses elsewhere.
    local elsewhere="order_of_a_hash or lie_apart or engines_write or (additions_arrive and global)" chosen
    for tool in memcheck racecheck initcheck synccheck; do
        chosen=$once
        [ "$tool" != racecheck ] || chosen="($once) and not ($elsewhere)"
        [ "$tool" != initcheck ] || chosen="($once) and not shut_gate"
        # shellcheck disable=SC2086 # several names
        for file in ${SANITIZED:-tests/test_cuda*.py}; do
            while [ "$(jobs -rp | wc -l)" -ge 8 ]; do wait -n; done
            checked "$tool" "$file" "$chosen" &
        done
    done
    wait
    [ ! -s "$folder/sanitizer_failed.txt" ] || failed=1
    cat "$folder"/sanitizer_*.txt
}

# One tool over one file, in a process of its own while others run: nothing here is a timing. A file without a chosen test is none.
checked() {
    local log
    log=$(mktemp)
    compute-sanitizer --tool "$1" --report-api-errors no --error-exitcode 9 --target-processes all \
        "$python" -m pytest -q -x -m gpu -p no:cacheprovider --durations 5 "$2" -k "$3" >"$log" 2>&1
    local code=$?
    # Where no test was chosen the tool complains that nothing ran.
    if [ "$code" -ne 0 ] && ! grep -qE "^[0-9]+ deselected in" "$log"; then
        { echo "$1 $2: exit $code" && tail -60 "$log"; } >>"$folder/sanitizer_failed.txt"
    fi
    { echo "== $1 $2" && grep -E "passed|failed|deselected|s call|ERROR SUMMARY|RACECHECK SUMMARY" "$log"; } \
        >>"$folder/sanitizer_$1.txt"
    rm -f "$log"
}

repeats() {
    for number in 1 2 3 4 5; do
        run run launch_cost launch_layers --rounds 3 --time-limit 116 --out "$folder/repeat$number.json" \
            >"$folder/repeat.txt" 2>&1 || failed=1
    done
    "$python" lab/overlap.py "$folder"/repeat?.json | tee "$folder/overlap.txt"
}

# A session of the bundled run: recorded STEP ROUNDS SUITE|BENCHMARK…
recorded() {
    local step=$1 left=0 code wanted=("${@:3}" --rounds "$2" --out "$reference")
    [ ! -f "$folder/$step.done" ] || return 0
    if [ -f "$folder/$step.cut" ]; then wanted=(--resume "$reference"); elif [ -f "$reference" ]; then wanted[-2]=--into; fi
    # $SECONDS counts from the start of this script.
    [ -z "${LIMIT:-}" ] || { left=$((LIMIT - SECONDS)) && [ "$left" -ge 30 ]; } || return 0
    timeout --preserve-status -s INT "$left" "$python" -m microbench run "${wanted[@]}" >>"$folder/reference.txt" 2>&1
    code=$?
    [ "$code" -eq 0 ] || [ "$code" -eq 130 ] || failed=1
    case $code in # 1: all is measured, but some cases failed
        0 | 1) touch "$folder/$step.done" ;;
        130) [ ! -f "$reference" ] || touch "$folder/$step.cut" ;;
    esac
    echo "exit $code after $SECONDS s: $(tail -1 "$folder/reference.txt")"
}

# What the screen, the verdicts and predictions rest on. `compare` needs five rounds.
compared="host launch_arguments launch_cost launch_duration launch_gap launch_kind launch_layers launch_model launch_queue"
compared+=" launch_sync graph_gain graph_lifecycle graph_shape step_time link_bidirectional link_copy link_latency"
compared+=" link_state memory_copy memory_latency memory_levels memory_stream"

# All other benchmarks. link_nccl has nothing to say of one GPU.
further() {
    local name
    for name in $(basename -s .py -a microbench/benchmarks/{launch,graph,link,memory}/[a-z]*.py); do
        [[ " $compared link_nccl " == *" $name "* ]] || echo "$name"
    done
    echo compute
}

# Two sessions and not one for each suite, because benchmarks share processes, which take long to start.
# shellcheck disable=SC2086 # several names
reference() { recorded reference 5 $compared; }

# shellcheck disable=SC2046 # several names
reference_further() { recorded reference_further 3 $(further); }

reference_peers() {
    run run link_state link_concurrent link_peer --rounds 5 --out "$peers" >"$folder/reference_peers.txt" 2>&1 || failed=1
    run show "$peers" | tail -60
}

against() { "$python" lab/against.py "$1" "$folder" "$2" | tee "$folder/against_$1.txt" || failed=1; }

against_nvbandwidth() { against nvbandwidth 5; }

against_peers() { against peers 5; }

against_nccl_tests() { against nccl_tests 5; }

against_torch() { against torch 12; }

against_babelstream() { against babelstream 10; }

against_chase() {
    nvcc -O3 -arch=native -o "$folder/chase" lab/chase.cu || failed=1
    CHASE=$folder/chase against chase 10
    rm -f "$folder/chase"
}

chains() { "$python" lab/chains.py "$folder" 2 | tee "$folder/chains.txt" || failed=1; }

# The model against steps that it never saw, of this session and by the constants of an earlier one.
held_out() {
    "$python" lab/held_out.py measure "$folder/held-out.json" 200 >"$folder/held_out.txt" || failed=1
    "$python" lab/held_out.py compare "$folder/held-out.json" >>"$folder/held_out.txt" || failed=1
    if [ -f "${HELD_OUT:-}" ]; then
        "$python" lab/held_out.py compare "$HELD_OUT" "$folder/held-out.json" >>"$folder/held_out.txt" || failed=1
    fi
    cat "$folder/held_out.txt"
    xz -9e -k "$folder/held-out.json"
}

# What predictions of programs rest on, once a session.
costs() {
    [ -z "${COSTS:-}" ] || return 0
    COSTS=$folder/costs.json
    run run launch_cost launch_gap launch_sync launch_duration launch_queue launch_layers launch_model graph_lifecycle \
        graph_gain graph_shape link_copy link_latency launch_watched --out "$COSTS" >"$folder/costs.txt" 2>&1 || failed=1
}

# Steps of PyTorch programs against what is predicted of them from this machine's costs.
real_steps() {
    costs
    OUT=$folder "$python" lab/real_steps.py "$COSTS" | tee "$folder/real_steps.txt" || failed=1
}

# Diagnoses of traces against true times. The second half needs no GPU and can be repeated from FOLDER.
programs() {
    costs
    "$python" lab/real_programs.py measure "$folder" | tee "$folder/programs.txt" || failed=1
    "$python" lab/real_programs.py compare "$folder" "$COSTS" || failed=1
}

# The worked example of docs/: its times, its trace, and what diagnose says of it by this machine's costs.
example() {
    costs
    local eager
    for way in "" --graph "" --graph; do
        "$python" docs/example/decode.py $way | tee -a "$folder/example.txt" || failed=1
    done
    "$python" docs/example/decode.py --trace "$folder/decode.json.gz" || failed=1
    eager=$(head -1 "$folder/example.txt" | cut -d" " -f1)ms
    for options in "" "--step $eager" "--all --step $eager"; do
        # shellcheck disable=SC2086 # several options
        run diagnose "$folder/decode.json.gz" --run "$COSTS" $options | tee -a "$folder/example.txt" || failed=1
    done
    run diagnose "$folder/decode.json.gz" --run "$COSTS" --step "$eager" --svg "$folder/diagnosis.svg" || failed=1
    run diagnose "$folder/decode.json.gz" --run "$COSTS" --timeline --svg "$folder/timeline.svg" || failed=1
}

# What recording by watch adds to a step, beside torch.profiler, WATCH_ROUNDS times in turn.
watch_overhead() {
    "$python" lab/watch_overhead.py "$folder" "${WATCH_ROUNDS:-8}" | tee "$folder/watch_overhead.txt" || failed=1
}

# Without nvmath: cuBLASLt's rows are skipped with the line that installs it, CuPy's still run.
without_nvmath() {
    local hidden
    hidden=$(mktemp -d)
    mkdir "$hidden/nvmath" && echo 'raise ModuleNotFoundError("hidden", name="nvmath")' >"$hidden/nvmath/__init__.py"
    PYTHONPATH=$hidden:$PYTHONPATH run run gemm_throughput --set library=cublaslt,cupy --set dtype=fp16 --set size=8192 \
        --out "$folder/without_nvmath.json" >"$folder/without_nvmath.txt" 2>&1 || failed=1
    grep -E "^\[" "$folder/without_nvmath.txt"
    rm -r "$hidden"
}

presets() {
    for preset in --quick ""; do
        # shellcheck disable=SC2086 # an empty preset is no argument
        { time run run $preset --out "$folder/preset$preset.json"; } >"$folder/preset$preset.txt" 2>&1 || failed=1
        grep -E "time budget|^real|failed" "$folder/preset$preset.txt" | tail -20
    done
}

pack() {
    for file in "$reference" "$peers"; do
        [ ! -f "$file" ] || xz -9ec "$file" >"$folder/$(basename "$file").xz" || failed=1
    done
}

for step in "${steps[@]}"; do
    echo "== $step"
    "$step"
done
exit "$failed"
