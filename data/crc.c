/* CRC-32 of byte ranges, by zlib. */
#include "data/data.h"

#include <zlib.h>

uint32_t dpn_crc32(uint32_t crc, const void *bytes, size_t n_bytes)
{
    /* crc32_z answers NULL with the starting value of a CRC, not with the one continued. */
    return n_bytes ? (uint32_t)crc32_z(crc, bytes, n_bytes) : crc;
}

uint32_t dpn_crc32_combine(uint32_t first, uint32_t second, size_t second_bytes)
{
    return (uint32_t)crc32_combine(first, second, (z_off_t)second_bytes);
}
