package vision

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"

	"golang.org/x/image/bmp"
	"golang.org/x/image/webp"
)

// Limits bound what Decode takes in. They are checked on the header, before pixels are decoded. A zero field means its default.
type Limits struct {
	MaxBytes  int // of the file. Default 32 MiB
	MaxSide   int // pixels of the longer side. Default 8192
	MaxPixels int // pixels in all. Default 64 Mi: a decoder needs 4 to 8 bytes for each
}

// WithDefaults fills in zero fields.
func (l Limits) WithDefaults() Limits {
	if l.MaxBytes == 0 {
		l.MaxBytes = 32 << 20
	}
	if l.MaxSide == 0 {
		l.MaxSide = 8192
	}
	if l.MaxPixels == 0 {
		l.MaxPixels = 64 << 20
	}
	return l
}

var (
	// ErrFormat marks data that is not an image of a supported format, or a damaged one.
	ErrFormat = errors.New("not a readable image")
	// ErrTooLarge marks an image beyond the Limits.
	ErrTooLarge = errors.New("image too large")
)

type codec struct {
	name   string
	header func(io.Reader) (image.Config, error)
	decode func(io.Reader) (image.Image, error)
}

// sniff tells the format from the first bytes. The name the client gives is not trusted.
func sniff(raw []byte) (codec, bool) {
	starts := func(s string) bool { return bytes.HasPrefix(raw, []byte(s)) }
	switch {
	case starts("\x89PNG\r\n\x1a\n"):
		return codec{"PNG", png.DecodeConfig, png.Decode}, true
	case starts("\xff\xd8\xff"):
		return codec{"JPEG", jpeg.DecodeConfig, jpeg.Decode}, true
	case starts("GIF87a"), starts("GIF89a"):
		return codec{"GIF", gif.DecodeConfig, gif.Decode}, true
	case starts("RIFF") && len(raw) >= 12 && string(raw[8:12]) == "WEBP":
		return codec{"WebP", webp.DecodeConfig, webp.Decode}, true
	case starts("BM"):
		return codec{"BMP", bmp.DecodeConfig, bmp.Decode}, true
	}
	return codec{}, false
}

// Size returns the pixels of an image file as a viewer shows it, from its header alone, after the checks of Decode.
func Size(raw []byte, limits Limits) (w, h int, err error) {
	_, _, w, h, err = open(raw, limits)
	return w, h, err
}

// Decode reads a PNG, JPEG, GIF (first frame), WebP (still) or BMP file. Transparent pixels are composited over white, an
// EXIF orientation is applied. Errors wrap ErrFormat or ErrTooLarge.
func Decode(raw []byte, limits Limits) (*RGB, error) {
	c, turn, _, _, err := open(raw, limits)
	if err != nil {
		return nil, err
	}
	img, err := c.decode(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("decode %s of %d bytes: %w: %w", c.name, len(raw), ErrFormat, err)
	}
	bounds := img.Bounds()
	if c.name == "GIF" {
		// The first frame may cover only part of the screen; the rest is transparent.
		head, err := c.header(bytes.NewReader(raw))
		if err != nil {
			return nil, fmt.Errorf("decode %s: %w: %w", c.name, ErrFormat, err)
		}
		bounds = image.Rect(0, 0, head.Width, head.Height)
	}
	if bounds.Empty() {
		return nil, fmt.Errorf("decode %s: %w: it has no pixels", c.name, ErrFormat)
	}
	return orient(flatten(img, bounds), turn), nil
}

// open recognises the format and checks the limits. w and h are after rotation.
func open(raw []byte, limits Limits) (c codec, turn, w, h int, err error) {
	limits = limits.WithDefaults()
	if len(raw) > limits.MaxBytes {
		return c, 0, 0, 0, fmt.Errorf("decode image: %w: %d bytes, the limit is %d", ErrTooLarge, len(raw), limits.MaxBytes)
	}
	c, ok := sniff(raw)
	if !ok {
		return c, 0, 0, 0, fmt.Errorf("decode image of %d bytes: %w: want PNG, JPEG, GIF, WebP or BMP", len(raw), ErrFormat)
	}
	head, err := c.header(bytes.NewReader(raw))
	if err != nil {
		return c, 0, 0, 0, fmt.Errorf("decode %s header: %w: %w", c.name, ErrFormat, err)
	}
	w, h = head.Width, head.Height
	if w < 1 || h < 1 {
		return c, 0, 0, 0, fmt.Errorf("decode %s: %w: %d x %d pixels", c.name, ErrFormat, w, h)
	}
	if w > limits.MaxSide || h > limits.MaxSide || int64(w)*int64(h) > int64(limits.MaxPixels) {
		return c, 0, 0, 0, fmt.Errorf("decode %s: %w: %d x %d pixels, the limits are %d for a side and %d in all",
			c.name, ErrTooLarge, w, h, limits.MaxSide, limits.MaxPixels)
	}
	turn = orientation(c.name, raw)
	if turn >= 5 {
		w, h = h, w
	}
	return c, turn, w, h, nil
}

// flatten copies the pixels of an image over white.
func flatten(img image.Image, bounds image.Rectangle) *RGB {
	out := newRGB(bounds.Dx(), bounds.Dy())
	if opaque, ok := img.(interface{ Opaque() bool }); !ok || !opaque.Opaque() || img.Bounds() != bounds {
		// Straight values are kept as they are; drawing would round them through premultiplied ones.
		over, straight := img.(*image.NRGBA)
		if !straight || over.Rect != bounds {
			over = image.NewNRGBA(bounds)
			visible := img.Bounds().Intersect(bounds)
			draw.Draw(over, visible, img, visible.Min, draw.Src)
		}
		for y := range out.H {
			row := over.Pix[over.PixOffset(bounds.Min.X, bounds.Min.Y+y):]
			for x := range out.W {
				a := int(row[4*x+3])
				for i := range 3 {
					out.Pix[3*(y*out.W+x)+i] = byte((int(row[4*x+i])*a + 255*(255-a) + 127) / 255)
				}
			}
		}
		return out
	}
	switch src := img.(type) {
	case *image.RGBA:
		copyRGBA(out, src.Pix[src.PixOffset(bounds.Min.X, bounds.Min.Y):], src.Stride)
	case *image.NRGBA:
		copyRGBA(out, src.Pix[src.PixOffset(bounds.Min.X, bounds.Min.Y):], src.Stride)
	case *image.YCbCr:
		for y := range out.H {
			for x := range out.W {
				i, j := src.YOffset(bounds.Min.X+x, bounds.Min.Y+y), src.COffset(bounds.Min.X+x, bounds.Min.Y+y)
				at := 3 * (y*out.W + x)
				out.Pix[at], out.Pix[at+1], out.Pix[at+2] = color.YCbCrToRGB(src.Y[i], src.Cb[j], src.Cr[j])
			}
		}
	default:
		for y := range out.H {
			for x := range out.W {
				r, g, b, _ := img.At(bounds.Min.X+x, bounds.Min.Y+y).RGBA()
				at := 3 * (y*out.W + x)
				out.Pix[at], out.Pix[at+1], out.Pix[at+2] = byte(r>>8), byte(g>>8), byte(b>>8)
			}
		}
	}
	return out
}

func copyRGBA(out *RGB, pix []byte, stride int) {
	for y := range out.H {
		row := pix[y*stride:]
		for x := range out.W {
			copy(out.Pix[3*(y*out.W+x):3*(y*out.W+x)+3], row[4*x:])
		}
	}
}

// orient turns an image upright. turn is the EXIF orientation 1..8.
func orient(src *RGB, turn int) *RGB {
	if turn <= 1 {
		return src
	}
	w, h := src.W, src.H
	dst := newRGB(w, h)
	if turn >= 5 {
		dst.W, dst.H = h, w
	}
	for y := range dst.H {
		for x := range dst.W {
			var sx, sy int
			switch turn {
			case 2: // mirrored left to right
				sx, sy = w-1-x, y
			case 3: // upside down
				sx, sy = w-1-x, h-1-y
			case 4: // mirrored top to bottom
				sx, sy = x, h-1-y
			case 5: // transposed
				sx, sy = y, x
			case 6: // to be turned right
				sx, sy = y, h-1-x
			case 7: // transposed along the other diagonal
				sx, sy = w-1-y, h-1-x
			case 8: // to be turned left
				sx, sy = w-1-y, x
			}
			copy(dst.Pix[3*(y*dst.W+x):3*(y*dst.W+x)+3], src.Pix[3*(sy*w+sx):])
		}
	}
	return dst
}

// orientation finds the EXIF orientation of a file; 1 where there is none or it is damaged.
func orientation(format string, raw []byte) int {
	switch format {
	case "JPEG":
		return jpegOrientation(raw)
	case "PNG":
		for at := 8; at+12 <= len(raw); {
			n, kind := int(binary.BigEndian.Uint32(raw[at:])), string(raw[at+4:at+8])
			if n < 0 || n > len(raw)-at-12 || kind == "IEND" {
				break
			}
			if kind == "eXIf" {
				return tiffOrientation(raw[at+8 : at+8+n])
			}
			at += 12 + n
		}
	case "WebP":
		for at := 12; at+8 <= len(raw); {
			n, kind := int(binary.LittleEndian.Uint32(raw[at+4:])), string(raw[at:at+4])
			if n < 0 || n > len(raw)-at-8 {
				break
			}
			if kind == "EXIF" {
				return tiffOrientation(bytes.TrimPrefix(raw[at+8:at+8+n], []byte("Exif\x00\x00")))
			}
			at += 8 + n + n&1
		}
	}
	return 1
}

func jpegOrientation(raw []byte) int {
	for at := 2; at+4 <= len(raw) && raw[at] == 0xff; {
		marker := raw[at+1]
		if marker == 0xff { // fill byte
			at++
			continue
		}
		if marker == 0xda || marker == 0xd9 { // pixels follow, or the end
			break
		}
		n := int(binary.BigEndian.Uint16(raw[at+2:]))
		if n < 2 || at+2+n > len(raw) {
			break
		}
		if body := raw[at+4 : at+2+n]; marker == 0xe1 && bytes.HasPrefix(body, []byte("Exif\x00\x00")) {
			return tiffOrientation(body[6:])
		}
		at += 2 + n
	}
	return 1
}

// tiffOrientation reads tag 0x0112 of the first directory of an EXIF block.
func tiffOrientation(raw []byte) int {
	if len(raw) < 8 {
		return 1
	}
	var order binary.ByteOrder = binary.LittleEndian
	switch string(raw[:4]) {
	case "II*\x00":
	case "MM\x00*":
		order = binary.BigEndian
	default:
		return 1
	}
	at := int64(order.Uint32(raw[4:]))
	if at+2 > int64(len(raw)) {
		return 1
	}
	n := int64(order.Uint16(raw[at:]))
	for i := range n {
		e := at + 2 + 12*i
		if e+12 > int64(len(raw)) {
			return 1
		}
		if order.Uint16(raw[e:]) == 0x0112 {
			if v := int(order.Uint16(raw[e+8:])); v >= 1 && v <= 8 {
				return v
			}
			return 1
		}
	}
	return 1
}
