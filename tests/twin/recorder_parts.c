/* The parts of the recorder that tests call by themselves. */
#include "../../microbench/recorder/recorder.c"

/* Write the records of a buffer, as of a process that began with this file. CUPTI's function gives the records. */
void keep_in(
    int target, void *next_record, const void *records, size_t bytes, int at_the_end, uint64_t first, uint64_t last) {
    memcpy(&cupti.next_record, &next_record, sizeof next_record);
    uint64_t number = generation;
    uint8_t *buffer = malloc(bytes + sizeof number);
    memcpy(buffer, records, bytes);
    memcpy(buffer + bytes, &number, sizeof number);
    process = getpid();
    file = target;
    written_bytes = least_free_bytes = failure = 0;
    first_launch = first;
    last_counted = last;
    finished = 0;
    ending = at_the_end;
    stopped = false;
    memset(seen_names, 0, sizeof seen_names);
    completed(NULL, 0, buffer, bytes, bytes);
}

/* How much memory is handed out after so much of it. */
size_t handed_out(uint64_t before, int after_the_end) {
    uint8_t *buffer;
    size_t size, most;
    handed_out_bytes = before;
    stopped = after_the_end;
    requested(&buffer, &size, &most);
    free(buffer);
    return most || handed_out_bytes != before + size || !buffer != !size ? 1 : size;
}

/* Let ``called_by_name`` write the rows of calls to a file, by these functions of CUPTI, as a process that began so. */
void begin_calls(int target, void *get_timestamp, void *get_stream_id, const void *chosen, uint64_t last) {
    memcpy(&cupti.get_timestamp, &get_timestamp, sizeof get_timestamp);
    memcpy(&cupti.get_stream_id, &get_stream_id, sizeof get_stream_id);
    memcpy(actions, chosen, sizeof actions);
    process = getpid();
    file = target;
    written_bytes = least_free_bytes = failure = waiting_calls = 0;
    last_counted = last;
    stopped = false;
}

void called_by_name(void *user, uint32_t domain, uint32_t number, const void *about) {
    called(user, domain, number, about);
}

/* A pause ended before the call ``before``, and the first call behind it is ``behind``, or 0. */
void set_pause(uint64_t before, uint64_t behind) {
    before_pause = before;
    behind_pause = behind;
}

uint64_t first_behind_pause(void) {
    return behind_pause;
}

/* A call of the runtime enters, or leaves. */
void enter_or_leave(uint32_t number, uint32_t correlation, int leaves, uint64_t *kept) {
    Called data = {.leaves = leaves, .kept = kept, .correlation = correlation};
    called(NULL, 2, number, &data);
}

void end_calls(void) {
    write_calls();
}

/* What is done about a call. */
int action_by_name(const char *call) {
    return action_of(call);
}

/* How many kernels of this window have ended. */
int finished_kernels(void) {
    return finished;
}
