/* Reads the events of a large or damaged trace file: each byte once, a row of numbers for each event that matters.
 *
 * scanner.py gives it one chunk after another and has the tables that last longer. It hands back the place of what it
 * does not decode: begin and end events, metadata, events without a category, collectives with sizes, numbers in quotes,
 * keys with escapes. It never reads beyond the chunk, never writes beyond the tables, and needs no memory of its own.
 */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))
#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef const uint8_t *Data;

enum { SHORT = -1, BROKEN = -2 }; /* instead of a place: the chunk ends before; this is not JSON */
enum { NONE = -1 };
enum { NEED_MORE, OUT_OF_ROOM, ARRAY_ENDED };
/* Places of what a pass counts, as in scanner.py. */
enum { N_ROWS, N_UNUSUAL, N_NAMES, N_THREADS, N_DAMAGED, ALL_NAMES, ALL_THREADS };
/* Columns of a row (Field), and the categories at which others begin or end (Category), as in collector.py. */
enum {
    F_CATEGORY, F_BEGIN, F_DURATION, F_NAME, F_THREAD, F_CORRELATION, F_STREAM, F_DEVICE, F_BYTES, F_BLOCKS, F_THREADS,
    F_NODE, F_ON_STREAM, F_ON_CORRELATION, FIELDS = 16, F_UNUSUAL = -2
};
enum { LAST_DEVICE_CATEGORY = 2, SYNC_CATEGORY = 5, FIRST_HOST_CATEGORY = 6 };

/* What lasts from one chunk to the next, and where a pass puts what it finds. scanner.py has the same structure. */
typedef struct {
    const int64_t *blank_row;
    const uint64_t *category_hashes;
    const int64_t *category_codes;
    int64_t *rows, *unusual, *new_names, *new_threads;
    uint64_t *name_hashes, *thread_hashes;
    int32_t *name_numbers, *thread_numbers;
    int64_t *counts;
    int64_t categories, most_rows, most_new_threads, name_places, thread_places, most_names, most_threads;
} Tables;

enum { K_OTHER, K_PH, K_CAT, K_NAME, K_PID, K_TID, K_TS, K_DUR, K_ARGS };
static const struct { const char *text; int key; } KEYS[] = {
    {"ph", K_PH}, {"cat", K_CAT}, {"name", K_NAME}, {"pid", K_PID}, {"tid", K_TID}, {"ts", K_TS}, {"dur", K_DUR},
    {"args", K_ARGS},
}, ARGS[] = {
    {"correlation", F_CORRELATION}, {"stream", F_STREAM}, {"device", F_DEVICE}, {"bytes", F_BYTES}, {"grid", F_BLOCKS},
    {"block", F_THREADS}, {"graph node id", F_NODE}, {"wait_on_stream", F_ON_STREAM},
    {"wait_on_cuda_event_record_corr_id", F_ON_CORRELATION}, {"In msg nelems", F_UNUSUAL},
    {"correlationId", F_UNUSUAL},
};
#define KNOWN(list, otherwise) \
    for (size_t one = 0; one < COUNT(list); one++) \
        if (strlen(list[one].text) == (size_t)(end - begin) && !memcmp(list[one].text, data + begin, (size_t)(end - begin))) \
            return list[one].key; \
    return otherwise

static int key_of(Data data, int64_t begin, int64_t end) { KNOWN(KEYS, K_OTHER); }

static int column_of(Data data, int64_t begin, int64_t end) { KNOWN(ARGS, NONE); }

/* The place of the quote that ends the string whose first character is at place. */
static int64_t string_end(Data data, int64_t place, int64_t size, bool *escapes)
{
    *escapes = false;
    for (; place < size; place++) {
        if (data[place] == '"')
            return place;
        if (data[place] == '\\') {
            *escapes = true;
            place++;
        }
    }
    return SHORT;
}

/* FNV-1a: also scanner.py's. */
static uint64_t hash_of(Data data, int64_t begin, int64_t end, bool lower)
{
    uint64_t value = 14695981039346656037u;
    for (int64_t place = begin; place < end; place++) {
        uint8_t byte = data[place];
        if (lower && byte >= 'A' && byte <= 'Z')
            byte += 32;
        value = (value ^ byte) * 1099511628211u;
    }
    return value;
}

static int64_t blank(Data data, int64_t place, int64_t size)
{
    while (place < size && data[place] <= ' ')
        place++;
    return place;
}

/* The place after the value that begins at place, or after the object in which place is (depth 1). */
EXPORTED int64_t microbench_value_end(Data data, int64_t place, int64_t size, int64_t depth)
{
    bool escapes;
    for (; place < size; place++) {
        uint8_t byte = data[place];
        if (byte == '"') {
            place = string_end(data, place + 1, size, &escapes);
            if (place == SHORT)
                return SHORT;
            if (depth == 0)
                return place + 1;
        } else if (byte == '{' || byte == '[') {
            depth++;
        } else if (byte == '}' || byte == ']') {
            if (depth == 0)
                return place;
            if (--depth == 0)
                return place + 1;
        } else if (depth == 0 && (byte == ',' || byte <= ' ')) {
            return place;
        }
    }
    return SHORT;
}

static bool ends_number(uint8_t byte) { return byte == ',' || byte == '}' || byte == ']' || byte <= ' '; }

static bool is_digit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

/* A number times 10^decimals, rounded; the place after it; whether it is written in a way that is read here. */
static int64_t number(Data data, int64_t place, int64_t size, int decimals, int64_t *result, bool *good)
{
    bool negative = data[place] == '-', up = false, point = false;
    uint64_t value = 0; /* too many digits wrap around, and are not good */
    int64_t digits = 0, fraction = 0;
    *good = false;
    for (place += negative; place < size; place++) {
        uint8_t byte = data[place];
        if (is_digit(byte)) {
            digits++;
            if (!point || fraction < decimals) {
                value = value * 10 + (byte - '0');
                fraction += point;
            } else if (fraction == decimals) {
                up = byte >= '5';
                fraction++;
            }
        } else if (byte == '.' && !point) {
            point = true;
        } else {
            break;
        }
    }
    if (place >= size)
        return SHORT;
    /* At most 15 digits: no overflow whatever the decimals. */
    *good = digits > 0 && ends_number(data[place]) && digits - fraction <= 15 && digits <= 40 && (decimals > 0 || !point);
    for (; fraction < decimals; fraction++)
        value *= 10;
    value += up;
    *result = (int64_t)(negative ? -value : value);
    return place;
}

/* An integer of up to 64 bits and beyond, wrapped around; the place after it; whether it is one. */
static int64_t big_integer(Data data, int64_t place, int64_t size, int64_t *result, bool *good)
{
    bool negative = data[place] == '-';
    int64_t first = place += negative;
    uint64_t value = 0;
    *good = false;
    for (; place < size && is_digit(data[place]); place++)
        value = value * 10 + (data[place] - '0');
    if (place >= size)
        return SHORT;
    *good = place > first && place - first <= 30 && ends_number(data[place]);
    *result = (int64_t)(negative ? -value : value);
    return place;
}

/* The product of a list of one to three positive sizes; the place after it; whether it is such a list. */
static int64_t product(Data data, int64_t place, int64_t size, int64_t *result, bool *good)
{
    int64_t value = 1, one = 0, after;
    *good = false;
    place = blank(data, place + 1, size);
    for (int count = 1; place < size; count++) {
        after = number(data, place, size, 0, &one, good);
        if (after == SHORT)
            return SHORT;
        if (!*good || one <= 0 || one >= INT64_C(1) << 31 || value > INT64_C(1) << 40 || count > 3 ||
            (one > 1 << 20 && value > 1 << 20))
            break;
        value *= one;
        place = blank(data, after, size);
        if (place < size && data[place] == ',') {
            place = blank(data, place + 1, size);
        } else if (place < size && data[place] == ']') {
            *result = value;
            return place + 1;
        } else if (place < size) {
            break;
        }
    }
    *good = false;
    return place < size ? place : SHORT;
}

/* The place of a hash in an open table, and whether it is taken. */
static int64_t find(const uint64_t *hashes, const int32_t *numbers, int64_t places, uint64_t key, bool *taken)
{
    int64_t place = (int64_t)(key & (uint64_t)(places - 1));
    for (; numbers[place] >= 0; place = (place + 1) & (places - 1))
        if (hashes[place] == key) {
            *taken = true;
            return place;
        }
    *taken = false;
    return place;
}

/* Read the key that begins at place, and the colon: the place of its value. */
static int64_t key_at(Data data, int64_t place, int64_t size, int64_t *begin, int64_t *end, bool *escapes)
{
    if (data[place] != '"')
        return BROKEN;
    *begin = place + 1;
    *end = string_end(data, *begin, size, escapes);
    if (*end == SHORT)
        return SHORT;
    place = blank(data, *end + 1, size);
    if (place >= size)
        return SHORT;
    if (data[place] != ':')
        return BROKEN;
    place = blank(data, place + 1, size);
    return place < size ? place : SHORT;
}

/* What follows a value that ends at place: the place of the next key, or the place after the object. */
static int64_t next_of(Data data, int64_t place, int64_t size, bool *ended)
{
    place = blank(data, place, size);
    if (place >= size)
        return SHORT;
    *ended = data[place] == '}';
    if (*ended)
        return place + 1;
    if (data[place] != ',')
        return BROKEN;
    place = blank(data, place + 1, size);
    return place < size ? place : SHORT;
}

/* Read the args object that begins at place: the place after it, and whether all in it is of the usual form. */
static int64_t args(Data data, int64_t place, int64_t size, int64_t *row, bool *usual)
{
    bool escapes, ended = false;
    int64_t begin, end;
    *usual = true;
    place = blank(data, place + 1, size);
    if (place >= size)
        return SHORT;
    if (data[place] == '}')
        return place + 1;
    while (!ended) {
        place = key_at(data, place, size, &begin, &end, &escapes);
        if (place < 0)
            return place;
        *usual = *usual && !escapes;
        int column = column_of(data, begin, end);
        int64_t after = place, value = 0;
        bool good = column != F_UNUSUAL;
        if (column == F_BLOCKS || column == F_THREADS) {
            good = data[place] == '[';
            if (good)
                after = product(data, place, size, &value, &good);
        } else if (column >= 0) {
            after = big_integer(data, place, size, &value, &good);
        }
        if (after == SHORT)
            return SHORT;
        if (column >= 0 && good) {
            row[column] = value;
            place = after;
        } else {
            *usual = *usual && good;
            place = microbench_value_end(data, place, size, 0);
            if (place == SHORT)
                return SHORT;
        }
        place = next_of(data, place, size, &ended);
        if (place < 0)
            return place;
    }
    return place;
}

/* An event while it is read. */
typedef struct {
    int64_t row[FIELDS];
    int64_t phase, category, process, thread, name_begin, name_end;
    bool usual, has_category, has_time, bad_track;
} Event;

/* Read the text that begins behind the quote at place: the place after it. */
static int64_t text_of(const Tables *tables, Data data, int64_t place, int64_t size, int key, Event *event)
{
    bool escapes;
    int64_t begin = place + 1, end = string_end(data, begin, size, &escapes);
    if (end == SHORT)
        return SHORT;
    if (key == K_NAME) {
        event->name_begin = begin;
        event->name_end = end;
    } else if (key == K_PH) {
        event->phase = end == begin + 1 ? data[begin] : -1;
        if (escapes) {
            event->usual = false;
            event->phase = 'X';
        }
    } else if (key == K_CAT) {
        uint64_t text = hash_of(data, begin, end, true);
        event->has_category = true;
        event->category = -1;
        for (int64_t one = 0; one < tables->categories; one++)
            if (tables->category_hashes[one] == text)
                event->category = tables->category_codes[one];
        if (escapes) {
            event->usual = false;
            event->category = 0;
        }
    } else if (key == K_PID || key == K_TID) {
        event->bad_track = true;
    } else if (key == K_TS || key == K_DUR || key == K_ARGS) {
        event->usual = false;
    }
    return end + 1;
}

/* Read the value at place that is no text: the place after it. */
static int64_t value_of(Data data, int64_t place, int64_t size, int key, Event *event)
{
    int64_t after, *row = event->row;
    bool good = true, again = false;
    if (key == K_TS) {
        after = number(data, place, size, 3, &row[F_BEGIN], &good);
        event->has_time = good;
    } else if (key == K_DUR) {
        after = number(data, place, size, 3, &row[F_DURATION], &good);
        good = good && row[F_DURATION] >= 0;
    } else if (key == K_PID || key == K_TID) {
        after = big_integer(data, place, size, key == K_PID ? &event->process : &event->thread, &good);
        event->bad_track = event->bad_track || !good;
        again = event->bad_track;
        good = true;
    } else if (key == K_ARGS && data[place] == '{' && event->category < FIRST_HOST_CATEGORY) {
        after = args(data, place, size, row, &good);
        if (after == BROKEN)
            return BROKEN;
    } else {
        good = key != K_PH && key != K_NAME && key != K_CAT;
        after = microbench_value_end(data, place, size, 0);
    }
    if (after == SHORT)
        return SHORT;
    if (!good)
        event->usual = false;
    if (!good || again)
        after = microbench_value_end(data, place, size, 0);
    return after == place ? BROKEN : after;
}

/* Read the event whose brace is before place: the place after it. */
static int64_t event_of(const Tables *tables, Data data, int64_t place, int64_t size, Event *event)
{
    bool escapes, ended = false;
    int64_t begin, end;
    place = blank(data, place, size);
    if (place >= size)
        return SHORT;
    if (data[place] == '}')
        return place + 1;
    while (!ended) {
        place = key_at(data, place, size, &begin, &end, &escapes);
        if (place < 0)
            return place;
        if (escapes)
            event->usual = false;
        int key = key_of(data, begin, end);
        place = data[place] == '"' ? text_of(tables, data, place, size, key, event)
                                   : value_of(data, place, size, key, event);
        if (place < 0)
            return place;
        place = next_of(data, place, size, &ended);
        if (place < 0)
            return place;
    }
    return place;
}

/* The number of a name, a new one if there is room. */
static int64_t name_of(const Tables *tables, Data data, const Event *event)
{
    bool known;
    int64_t *counts = tables->counts, begin = event->name_begin, end = event->name_end;
    uint64_t key = hash_of(data, begin, end, false);
    int64_t place = find(tables->name_hashes, tables->name_numbers, tables->name_places, key, &known);
    if (known)
        return tables->name_numbers[place];
    if (counts[ALL_NAMES] >= tables->most_names)
        return NONE;
    tables->name_hashes[place] = key;
    tables->new_names[2 * counts[N_NAMES]] = begin;
    tables->new_names[2 * counts[N_NAMES]++ + 1] = end;
    return tables->name_numbers[place] = (int32_t)counts[ALL_NAMES]++;
}

/* The number of a thread, a new one if there is room. */
static int64_t thread_of(const Tables *tables, const Event *event)
{
    bool known;
    int64_t *counts = tables->counts;
    uint64_t key = (((uint64_t)event->process * 1099511628211u) ^ (uint64_t)event->thread) * 0x9E3779B97F4A7C15u;
    key ^= key >> 29;
    int64_t place = find(tables->thread_hashes, tables->thread_numbers, tables->thread_places, key, &known);
    if (known)
        return tables->thread_numbers[place];
    if (counts[ALL_THREADS] >= tables->most_threads)
        return NONE;
    tables->thread_hashes[place] = key;
    tables->new_threads[2 * counts[N_THREADS]] = event->process;
    tables->new_threads[2 * counts[N_THREADS]++ + 1] = event->thread;
    return tables->thread_numbers[place] = (int32_t)counts[ALL_THREADS]++;
}

/* Keep an event of the usual form as a row. */
static void keep(const Tables *tables, Data data, Event *event)
{
    int64_t *row = event->row, category = event->category;
    row[F_CATEGORY] = category;
    row[F_NAME] = name_of(tables, data, event);
    if (category > LAST_DEVICE_CATEGORY) {
        row[F_THREAD] = thread_of(tables, event);
        if (category != SYNC_CATEGORY)
            row[F_STREAM] = row[F_ON_STREAM] = row[F_ON_CORRELATION] = NONE;
        row[F_DEVICE] = row[F_BYTES] = row[F_BLOCKS] = row[F_THREADS] = row[F_NODE] = NONE;
        if (category >= FIRST_HOST_CATEGORY)
            row[F_CORRELATION] = NONE;
    } else {
        /* Old recordings say the device and the stream only by the place where the event is drawn. */
        if (row[F_STREAM] == NONE)
            row[F_STREAM] = event->thread;
        if (row[F_DEVICE] == NONE)
            row[F_DEVICE] = event->process;
        if (row[F_NODE] == 0)
            row[F_NODE] = NONE;
        row[F_ON_STREAM] = row[F_ON_CORRELATION] = NONE;
    }
    memcpy(tables->rows + FIELDS * tables->counts[N_ROWS]++, row, sizeof event->row);
}

/* Read events until the chunk or the room for rows ends: the place up to which all is read, and why it stopped. */
EXPORTED int64_t microbench_scan(const Tables *tables, Data data, int64_t place, int64_t size, int64_t *reason)
{
    int64_t *counts = tables->counts, after;
    for (;;) {
        while (place < size && (data[place] <= ' ' || data[place] == ','))
            place++;
        int64_t start = place;
        *reason = NEED_MORE;
        if (place >= size)
            return size;
        if (data[place] == ']') {
            *reason = ARRAY_ENDED;
            return place + 1;
        }
        if (counts[N_ROWS] >= tables->most_rows || counts[N_UNUSUAL] >= tables->most_rows ||
            counts[N_NAMES] >= tables->most_rows || counts[N_THREADS] >= tables->most_new_threads) {
            *reason = OUT_OF_ROOM;
            return start;
        }
        if (data[place] != '{') {
            bool stray = data[place] == '}' || data[place] == ':';
            after = stray ? place + 1 : microbench_value_end(data, place, size, 0);
            if (after == SHORT)
                return start;
            counts[N_DAMAGED]++;
            place = after == start ? start + 1 : after;
            continue;
        }
        Event event = {.category = -1, .process = -1, .thread = -1, .name_begin = -1, .name_end = -1, .usual = true};
        memcpy(event.row, tables->blank_row, sizeof event.row);
        after = event_of(tables, data, place + 1, size, &event);
        bool intact = after != BROKEN;
        if (!intact)
            after = microbench_value_end(data, start + 1, size, 1);
        if (after == SHORT)
            return start;
        place = after;
        int64_t phase = event.phase;
        if (!intact) {
            counts[N_DAMAGED]++;
        } else if (event.usual && (phase == 'X' || !phase) && event.has_category && event.category < 0) {
            continue; /* of no category that matters */
        } else if (event.usual && phase != 'X' && phase != 'B' && phase != 'E' && phase != 'M') {
            continue;
        } else if (!event.usual || phase != 'X' || !event.has_category || event.bad_track || !event.has_time ||
                   event.name_begin < 0) {
            tables->unusual[2 * counts[N_UNUSUAL]] = start;
            tables->unusual[2 * counts[N_UNUSUAL]++ + 1] = place;
        } else {
            keep(tables, data, &event);
        }
    }
}
