package protocol

import (
	"math"
	"strconv"

	"github.com/deepinfer-go/deepinfer/recipe/pyjson"
)

// JSON writes compact JSON in a fixed key order. The zero value is ready; B is the text so far. Strings escape only what they must.
type JSON struct{ B []byte }

// sep puts a comma where one belongs.
func (w *JSON) sep() {
	if n := len(w.B); n > 0 {
		switch w.B[n-1] {
		case '{', '[', ':', ',', ' ', '\n':
		default:
			w.B = append(w.B, ',')
		}
	}
}

// Open begins an object.
func (w *JSON) Open() *JSON { w.sep(); w.B = append(w.B, '{'); return w }

// Close ends an object.
func (w *JSON) Close() *JSON { w.B = append(w.B, '}'); return w }

// Array begins an array.
func (w *JSON) Array() *JSON { w.sep(); w.B = append(w.B, '['); return w }

// End ends an array.
func (w *JSON) End() *JSON { w.B = append(w.B, ']'); return w }

// Key writes a key.
func (w *JSON) Key(k string) *JSON {
	w.sep()
	w.B = append(append(append(w.B, '"'), k...), '"', ':')
	return w
}

// Name writes a key that may need escapes.
func (w *JSON) Name(k string) *JSON {
	w.sep()
	w.B = append(pyjson.AppendString(w.B, k), ':')
	return w
}

// Str writes a string.
func (w *JSON) Str(s string) *JSON { w.sep(); w.B = pyjson.AppendString(w.B, s); return w }

// OrNull writes a string, or null for nil.
func (w *JSON) OrNull(s *string) *JSON {
	if s == nil {
		return w.Null()
	}
	return w.Str(*s)
}

// Int writes an integer.
func (w *JSON) Int(n int64) *JSON { w.sep(); w.B = strconv.AppendInt(w.B, n, 10); return w }

// Float writes a number; infinities and NaN, which JSON lacks, become null.
func (w *JSON) Float(f float64) *JSON {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return w.Null()
	}
	w.sep()
	n := len(w.B)
	w.B = strconv.AppendFloat(w.B, f, 'g', -1, 64)
	for _, b := range w.B[n:] {
		if b == '.' || b == 'e' {
			return w
		}
	}
	w.B = append(w.B, '.', '0')
	return w
}

// Bool writes true or false.
func (w *JSON) Bool(b bool) *JSON { w.sep(); w.B = strconv.AppendBool(w.B, b); return w }

// Null writes null.
func (w *JSON) Null() *JSON { w.sep(); w.B = append(w.B, "null"...); return w }

// Raw writes JSON text as it is.
func (w *JSON) Raw(b []byte) *JSON { w.sep(); w.B = append(w.B, b...); return w }

// Value writes a parsed value without white space.
func (w *JSON) Value(v *pyjson.Value) *JSON { w.sep(); w.B = AppendCompact(w.B, v); return w }

// AppendCompact appends v without white space, numbers the way the reference adapter prints them.
func AppendCompact(dst []byte, v *pyjson.Value) []byte {
	switch v.Kind {
	case pyjson.Array:
		dst = append(dst, '[')
		for i := range v.Elems {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = AppendCompact(dst, &v.Elems[i])
		}
		return append(dst, ']')
	case pyjson.Object:
		dst = append(dst, '{')
		for i := range v.Members {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(pyjson.AppendString(dst, v.Members[i].Key), ':')
			dst = AppendCompact(dst, &v.Members[i].Value)
		}
		return append(dst, '}')
	}
	return v.Append(dst, pyjson.Rust)
}
