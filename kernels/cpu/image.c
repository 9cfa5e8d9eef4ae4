/* Raw images (CHW, bytes or floats) to inputs (HWC): crop, mirror, scale and shift.
 *
 * A plane's pixels go through the kernels u8_to_f32 and f32_affine, a block at a time, and from L1 to their
 * places; all of it vectorises. An image that is neither cropped nor mirrored is one long row.
 */
#include "kernels/cpu/isa.h"

enum { IMAGE_BLOCK = 256 }; /* pixels: four blocks of floats are 4 KB of stack */

/* COUNT pixels of channel C's plane from FROM on, scaled and shifted, mirrored if the image is. COUNT is at
 * most IMAGE_BLOCK if so. */
static void image_plane(const struct dpn_image *image, size_t c, size_t from, size_t count, float *to)
{
    float block[IMAGE_BLOCK], *target = image->flip ? block : to;
    const size_t start = c * image->height * image->width + from;
    const float scale = image->scale[c], shift = image->shift[c];
    if (image->u8 != NULL) DPN_ISA_SYMBOL(u8_to_f32)(count, image->u8 + start, scale, shift, target);
    else DPN_ISA_SYMBOL(f32_affine)(count, image->f32 + start, scale, shift, target);
    if (!image->flip) return;
    DPN_INDEPENDENT
    for (size_t i = 0; i < count; i++) to[i] = block[count - 1 - i];
}

/* COUNT pixels from FROM on, at most IMAGE_BLOCK, all channels. */
static void image_block(const struct dpn_image *image, size_t from, size_t count, float *restrict out)
{
    float plane[3][IMAGE_BLOCK];
    const size_t channels = image->channels;
    if (channels == 3) {
        for (size_t c = 0; c < 3; c++) image_plane(image, c, from, count, plane[c]);
        for (size_t i = 0; i < count; i++) {
            out[3 * i] = plane[0][i];
            out[3 * i + 1] = plane[1][i];
            out[3 * i + 2] = plane[2][i];
        }
        return;
    }
    for (size_t c = 0; c < channels; c++) {
        image_plane(image, c, from, count, plane[0]);
        for (size_t i = 0; i < count; i++) out[i * channels + c] = plane[0][i];
    }
}

/* COUNT pixels of one row from FROM on; of a mirrored image the last one comes first. */
static void image_run(const struct dpn_image *image, size_t from, size_t count, float *out)
{
    if (image->channels == 1 && !image->flip) {
        image_plane(image, 0, from, count, out);
        return;
    }
    for (size_t i = 0; i < count; i += IMAGE_BLOCK) {
        const size_t width = count - i < IMAGE_BLOCK ? count - i : IMAGE_BLOCK;
        image_block(image, from + i, width, out + (image->flip ? count - i - width : i) * image->channels);
    }
}

/* COUNT pixels of raw zeros. */
static void image_outside(const struct dpn_image *image, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++)
        for (size_t c = 0; c < image->channels; c++) out[i * image->channels + c] = image->shift[c];
}

/* Row Y of the image, or beyond it: the pixels before FIRST and from END on of the window's columns lie
 * outside. */
static void image_row(const struct dpn_image *image, long y, size_t first, size_t end, float *out)
{
    const size_t width = image->width, n = image->channels;
    if (y < 0 || (size_t)y >= image->height || first >= end) {
        image_outside(image, width, out);
        return;
    }
    const size_t before = image->flip ? width - end : first, count = end - first;
    const size_t from = (size_t)y * width + (size_t)(image->left + (long)first);
    image_outside(image, before, out);
    image_run(image, from, count, out + before * n);
    image_outside(image, width - before - count, out + (before + count) * n);
}

void DPN_ISA_SYMBOL(image)(const struct dpn_image *image)
{
    const long width = (long)image->width, left = image->left;
    if (image->top == 0 && left == 0 && !image->flip) {
        image_run(image, 0, image->height * image->width, image->out);
        return;
    }
    const long first = left < 0 ? -left : 0, end = left > 0 ? width - left : width;
    for (size_t y = 0; y < image->height; y++)
        image_row(image, image->top + (long)y, (size_t)first, end > first ? (size_t)end : (size_t)first,
                  image->out + y * image->width * image->channels);
}
