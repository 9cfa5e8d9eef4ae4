/* Strict, locale-independent parsing of what a user types: the whole token or nothing.
 *
 * WHERE names the option or file in the error text ("--batch"). All errors are DPN_ERR_USAGE with one line
 * that quotes the offending token and says what would be valid.
 */
#ifndef DPN_CORE_PARSE_H
#define DPN_CORE_PARSE_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* Decimal digits only: no sign, space, hex or exponent. MIN..MAX inclusive. */
enum dpn_status dpn_parse_u64(const char *where, const char *token, uint64_t min, uint64_t max,
                              uint64_t *value);

/* A finite decimal number ("0.05", "1e-7"; no hex, "nan" or "inf"), MIN..MAX inclusive. */
enum dpn_status dpn_parse_double(const char *where, const char *token, double min, double max, double *value);

/* A list of indices below COUNT: "0-7", "0,2,4-6", "all" (order kept). Empty items, reversed ranges, values
 * outside 0..COUNT-1 (the error names the token and the valid range "0-N") are refused, more than
 * DPN_MAX_DEVICES entries, and duplicates too unless ALLOW_DUPLICATES. With WRAP (oversubscription) indices
 * up to DPN_MAX_DEVICES - 1 are accepted and returned as typed. *INDICES is malloc'd, the caller frees;
 * *N_INDICES >= 1. Memory use is bounded by the result, never by a number in the text. */
enum { DPN_MAX_DEVICES = 1024 };
enum dpn_status dpn_parse_index_list(const char *where, const char *text, size_t count, int allow_duplicates,
                                     int wrap, int **indices, size_t *n_indices);

/* A comma-separated list of numbers, MIN..MAX each; *VALUES malloc'd. */
enum dpn_status dpn_parse_double_list(const char *where, const char *text, double min, double max,
                                      double **values, size_t *n_values);

/* NAME[:key=value,...]: splits SPEC. Calls each(arg, key, value) for every pair, in order; stops at its first
 * error. A missing '=', an empty key, value or name, and a key given twice are refused. KEY and VALUE are
 * valid during the call only. *NAME is malloc'd on success, else NULL. */
enum dpn_status dpn_parse_spec(const char *where, const char *spec, char **name,
                               enum dpn_status (*each)(void *arg, const char *key, const char *value),
                               void *arg);

/* The word of the NULL-terminated WORDS nearest to TOKEN (Levenshtein distance at most 2 and less than
 * TOKEN's length; the first of equals), or NULL: for "did you mean". */
const char *dpn_near_miss(const char *token, const char *const *words);

/* DPN_OK and *CHOICE = position of TOKEN in the NULL-terminated WORDS; else an error that lists them. */
enum dpn_status dpn_parse_choice(const char *where, const char *token, const char *const *words, int *choice);

/* TOKEN as an error text quotes it: in single quotes, long ones cut with "...". Into BUFFER, returned. */
enum { DPN_QUOTE_BYTES = 80 };
const char *dpn_quote(const char *token, char buffer[DPN_QUOTE_BYTES]);

/* VALUE as text that parses back to the same bits, in any locale: the shortest of %.15g, %.16g and %.17g that
 * does. Into BUFFER, returned. */
enum { DPN_DOUBLE_BYTES = 32 };
const char *dpn_format_double(double value, char buffer[DPN_DOUBLE_BYTES]);

#endif
