/* Strict parsing of tokens, lists and specs: see parse.h. */
#include "core/parse.h"

#include <assert.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static locale_t parse_c_locale;

static void parse_make_locale(void)
{
    parse_c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* Numbers are read and written as in the C locale whatever a library made of the process's. (locale_t)0 only
 * where memory ran out. */
static locale_t parse_locale(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, parse_make_locale);
    return parse_c_locale;
}

const char *dpn_quote(const char *token, char buffer[DPN_QUOTE_BYTES])
{
    const size_t room = DPN_QUOTE_BYTES - sizeof "'...'";
    size_t length = strnlen(token, room + 1);
    int cut = length > room;
    if (cut) {
        length = room;
        /* not in the middle of a UTF-8 character */
        while (length > room - 3 && ((unsigned char)token[length] & 0xc0) == 0x80) length--;
    }
    snprintf(buffer, DPN_QUOTE_BYTES, "'%.*s%s'", (int)length, token, cut ? "..." : "");
    return buffer;
}

/* ---- numbers ---- */

static int parse_digits(const char *text, size_t length, uint64_t *value)
{
    uint64_t sum = 0;
    if (length == 0) return 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return 0;
        /* Digits that overflow are a number still, so that the error can say "out of range". */
        if (__builtin_mul_overflow(sum, UINT64_C(10), &sum) ||
            __builtin_add_overflow(sum, (uint64_t)(text[i] - '0'), &sum)) {
            while (++i < length)
                if (text[i] < '0' || text[i] > '9') return 0;
            return -1;
        }
    }
    *value = sum;
    return 1;
}

enum dpn_status dpn_parse_u64(const char *where, const char *token, uint64_t min, uint64_t max,
                              uint64_t *value)
{
    uint64_t parsed = 0;
    if (parse_digits(token, strlen(token), &parsed) == 1 && parsed >= min && parsed <= max) {
        *value = parsed;
        return DPN_OK;
    }
    char quoted[DPN_QUOTE_BYTES];
    return dpn_fail(DPN_ERR_USAGE, "%s %s is not a whole number in %ju..%ju", where, dpn_quote(token, quoted),
                    (uintmax_t)min, (uintmax_t)max);
}

/* [sign] digits [. digits] [e [sign] digits], with a digit before or after the point. */
static int parse_is_decimal(const char *text)
{
    if (*text == '+' || *text == '-') text++;
    size_t whole = strspn(text, "0123456789");
    text += whole;
    size_t fraction = 0;
    if (*text == '.') {
        fraction = strspn(text + 1, "0123456789");
        text += 1 + fraction;
    }
    if (whole + fraction == 0) return 0;
    if (*text == 'e' || *text == 'E') {
        text++;
        if (*text == '+' || *text == '-') text++;
        size_t digits = strspn(text, "0123456789");
        if (digits == 0) return 0;
        text += digits;
    }
    return *text == '\0';
}

enum dpn_status dpn_parse_double(const char *where, const char *token, double min, double max, double *value)
{
    char quoted[DPN_QUOTE_BYTES], low[DPN_DOUBLE_BYTES], high[DPN_DOUBLE_BYTES];
    locale_t locale = parse_locale();
    if (!locale) return dpn_fail(DPN_ERR_NOMEM, "%s: no memory for the C locale", where);
    if (parse_is_decimal(token)) {
        errno = 0;
        double parsed = strtod_l(token, NULL, locale);
        /* Subnormal results set ERANGE too, but they are numbers. */
        int lost = errno == ERANGE && (parsed == 0.0 || isinf(parsed));
        if (!lost && parsed >= min && parsed <= max) {
            *value = parsed == 0.0 ? 0.0 : parsed; /* no -0, which would read back as another text */
            return DPN_OK;
        }
    }
    return dpn_fail(DPN_ERR_USAGE, "%s %s is not a number in %s..%s", where, dpn_quote(token, quoted),
                    dpn_format_double(min, low), dpn_format_double(max, high));
}

const char *dpn_format_double(double value, char buffer[DPN_DOUBLE_BYTES])
{
    locale_t locale = parse_locale(), before = uselocale(locale);
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(buffer, DPN_DOUBLE_BYTES, "%.*g", digits, value);
        if (strtod(buffer, NULL) == value) break;
    }
    uselocale(before);
    return buffer;
}

enum dpn_status dpn_parse_double_list(const char *where, const char *text, double min, double max,
                                      double **values, size_t *n_values)
{
    char quoted[DPN_QUOTE_BYTES];
    size_t n = 1;
    for (const char *c = text; *c; c++) n += *c == ',';
    *values = NULL;
    *n_values = 0;

    enum dpn_status status = DPN_OK;
    double *list = malloc(n * sizeof *list);
    char *copy = strdup(text), *rest = copy;
    if (!list || !copy) {
        status = dpn_fail(DPN_ERR_NOMEM, "%s: no memory for %zu numbers", where, n);
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        const char *item = strsep(&rest, ",");
        if (*item == '\0')
            status = dpn_fail(DPN_ERR_USAGE, "%s %s has an empty item", where, dpn_quote(text, quoted));
        else status = dpn_parse_double(where, item, min, max, &list[i]);
        if (status != DPN_OK) goto out;
    }
    *values = list;
    *n_values = n;
    list = NULL;
out:
    free(copy);
    free(list);
    return status;
}

/* ---- lists of indices ---- */

struct parse_indices {
    const char *where;
    uint64_t limit; /* indices are below it */
    int allow_duplicates;
    int *list; /* room for DPN_MAX_DEVICES */
    size_t n;
};

static const char *parse_valid_range(const struct parse_indices *to, char buffer[32])
{
    if (to->limit == 0) snprintf(buffer, 32, "none");
    else if (to->limit == 1) snprintf(buffer, 32, "0");
    else snprintf(buffer, 32, "0-%ju", (uintmax_t)(to->limit - 1));
    return buffer;
}

/* The number in DIGITS[0..length-1], part of ITEM. */
static enum dpn_status parse_index(const struct parse_indices *to, const char *item, const char *digits,
                                   size_t length, uint64_t *index)
{
    char quoted[DPN_QUOTE_BYTES], range[32];
    uint64_t value = 0;
    int good = parse_digits(digits, length, &value);
    if (good == 0)
        return dpn_fail(DPN_ERR_USAGE, "%s %s is not an index or a range of indices, valid: %s", to->where,
                        dpn_quote(item, quoted), parse_valid_range(to, range));
    if (good < 0 || value >= to->limit)
        return dpn_fail(DPN_ERR_USAGE, "%s %s: index %.*s is out of range, valid: %s", to->where,
                        dpn_quote(item, quoted), length < 40 ? (int)length : 40, digits,
                        parse_valid_range(to, range));
    *index = value;
    return DPN_OK;
}

static enum dpn_status parse_add_range(struct parse_indices *to, const char *item, uint64_t first,
                                       uint64_t last)
{
    char quoted[DPN_QUOTE_BYTES];
    for (uint64_t index = first; index <= last; index++) {
        for (size_t i = 0; i < to->n && !to->allow_duplicates; i++)
            if ((uint64_t)to->list[i] == index)
                return dpn_fail(DPN_ERR_USAGE, "%s %s: index %ju is given twice", to->where,
                                dpn_quote(item, quoted), (uintmax_t)index);
        if (to->n == DPN_MAX_DEVICES)
            return dpn_fail(DPN_ERR_USAGE, "%s %s: more than %d entries", to->where, dpn_quote(item, quoted),
                            DPN_MAX_DEVICES);
        to->list[to->n++] = (int)index;
    }
    return DPN_OK;
}

static enum dpn_status parse_item(struct parse_indices *to, const char *item)
{
    char quoted[DPN_QUOTE_BYTES];
    uint64_t first, last;
    const char *dash = strchr(item, '-');
    if (!dash || dash == item) {
        DPN_TRY(parse_index(to, item, item, strlen(item), &first));
        return parse_add_range(to, item, first, first);
    }
    DPN_TRY(parse_index(to, item, item, (size_t)(dash - item), &first));
    DPN_TRY(parse_index(to, item, dash + 1, strlen(dash + 1), &last));
    if (first > last)
        return dpn_fail(DPN_ERR_USAGE, "%s %s: the range runs backwards", to->where, dpn_quote(item, quoted));
    return parse_add_range(to, item, first, last);
}

enum dpn_status dpn_parse_index_list(const char *where, const char *text, size_t count, int allow_duplicates,
                                     int wrap, int **indices, size_t *n_indices)
{
    char quoted[DPN_QUOTE_BYTES];
    enum dpn_status status = DPN_OK;
    struct parse_indices to = {
        .where = where,
        .limit = wrap && count < DPN_MAX_DEVICES ? DPN_MAX_DEVICES : count,
        .allow_duplicates = allow_duplicates,
        .list = malloc(DPN_MAX_DEVICES * sizeof *to.list),
    };
    char *copy = strdup(text), *rest = copy;
    *indices = NULL;
    *n_indices = 0;
    if (!copy || !to.list) {
        status = dpn_fail(DPN_ERR_NOMEM, "%s: no memory for the list", where);
        goto out;
    }
    if (count == 0) {
        status = dpn_fail(DPN_ERR_USAGE, "%s %s: there is nothing to choose from", where,
                          dpn_quote(text, quoted));
        goto out;
    }
    if (strcmp(text, "all") == 0) {
        status = parse_add_range(&to, text, 0, count - 1);
        rest = NULL;
    }
    while (status == DPN_OK && rest) {
        const char *item = strsep(&rest, ",");
        if (*item == '\0')
            status = dpn_fail(DPN_ERR_USAGE, "%s %s has an empty item", where, dpn_quote(text, quoted));
        else status = parse_item(&to, item);
    }
    if (status == DPN_OK) {
        *indices = to.list;
        *n_indices = to.n;
        to.list = NULL;
    }
out:
    free(copy);
    free(to.list);
    return status;
}

/* ---- words ---- */

enum { PARSE_WORD_MAX = 63, PARSE_NEAR = 2 };

static size_t parse_distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    size_t row[PARSE_WORD_MAX + 1];
    for (size_t j = 0; j <= n_b; j++) row[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n_b];
}

const char *dpn_near_miss(const char *token, const char *const *words)
{
    size_t length = strnlen(token, PARSE_WORD_MAX + 1);
    if (length > PARSE_WORD_MAX) return NULL;
    const char *nearest = NULL;
    size_t least = PARSE_NEAR + 1;
    if (length < least) least = length;
    for (; *words; words++) {
        size_t word_length = strlen(*words);
        if (word_length > PARSE_WORD_MAX) continue;
        size_t distance = parse_distance(token, length, *words, word_length);
        if (distance < least) {
            least = distance;
            nearest = *words;
        }
    }
    return nearest;
}

enum dpn_status dpn_parse_choice(const char *where, const char *token, const char *const *words, int *choice)
{
    char quoted[DPN_QUOTE_BYTES], list[512] = "";
    size_t length = 0;
    for (int i = 0; words[i]; i++) {
        if (strcmp(token, words[i]) == 0) {
            *choice = i;
            return DPN_OK;
        }
        if (length < sizeof list)
            length += (size_t)snprintf(list + length, sizeof list - length, "%s%s", i ? ", " : "", words[i]);
    }
    const char *near = dpn_near_miss(token, words);
    return dpn_fail(DPN_ERR_USAGE, "%s %s is not one of: %s%s%s%s", where, dpn_quote(token, quoted), list,
                    near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* ---- NAME:key=value,... ---- */

static int parse_key_seen(char *const *keys, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(keys[i], key) == 0) return 1;
    return 0;
}

static enum dpn_status parse_pairs(const char *where, const char *spec, char *pairs, char **keys,
                                   enum dpn_status (*each)(void *arg, const char *key, const char *value),
                                   void *arg)
{
    char quoted[DPN_QUOTE_BYTES], quoted_pair[DPN_QUOTE_BYTES];
    for (size_t n = 0; pairs; n++) {
        char *pair = strsep(&pairs, ","), *equals = strchr(pair, '=');
        if (!equals || equals == pair || equals[1] == '\0')
            return dpn_fail(DPN_ERR_USAGE, "%s %s: %s is not of the form key=value", where,
                            dpn_quote(spec, quoted), dpn_quote(pair, quoted_pair));
        *equals = '\0';
        if (parse_key_seen(keys, n, pair))
            return dpn_fail(DPN_ERR_USAGE, "%s %s: key %s is given twice", where, dpn_quote(spec, quoted),
                            dpn_quote(pair, quoted_pair));
        keys[n] = pair;
        DPN_TRY(each(arg, pair, equals + 1));
    }
    return DPN_OK;
}

enum dpn_status dpn_parse_spec(const char *where, const char *spec, char **name,
                               enum dpn_status (*each)(void *arg, const char *key, const char *value),
                               void *arg)
{
    char quoted[DPN_QUOTE_BYTES];
    size_t n_pairs = 1;
    for (const char *c = spec; *c; c++) n_pairs += *c == ',';

    enum dpn_status status;
    char *copy = strdup(spec), *rest = copy;
    char **keys = malloc(n_pairs * sizeof *keys);
    *name = NULL;
    if (!copy || !keys) {
        status = dpn_fail(DPN_ERR_NOMEM, "%s: no memory for %s", where, dpn_quote(spec, quoted));
        goto out;
    }
    if (*strsep(&rest, ":") == '\0') {
        status = dpn_fail(DPN_ERR_USAGE, "%s %s has no name", where, dpn_quote(spec, quoted));
        goto out;
    }
    status = parse_pairs(where, spec, rest, keys, each, arg);
    if (status == DPN_OK) {
        *name = copy; /* cut at the colon */
        copy = NULL;
    }
out:
    free(keys);
    free(copy);
    return status;
}
