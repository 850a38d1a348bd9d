package refop

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/internal/fixture"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// golden is one safetensors file of vectors recorded from the oracle.
type golden struct {
	head map[string]struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	data []byte
}

func load(t testing.TB, set string) golden {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(fixture.Dir(t, "model/"+set), "golden.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	n := binary.LittleEndian.Uint64(raw)
	if err := json.Unmarshal(raw[8:8+n], &g.head); err != nil {
		t.Fatal(err)
	}
	g.data = raw[8+n:]
	return g
}

func (g golden) bytes(t testing.TB, name string) ([]byte, []int) {
	t.Helper()
	h, ok := g.head[name]
	if !ok {
		t.Fatalf("the golden file has no %s", name)
	}
	return g.data[h.Offsets[0]:h.Offsets[1]], h.Shape
}

func (g golden) u16(t testing.TB, name string) ([]uint16, []int) {
	b, s := g.bytes(t, name)
	v := make([]uint16, len(b)/2)
	for i := range v {
		v[i] = binary.LittleEndian.Uint16(b[2*i:])
	}
	return v, s
}

func (g golden) f32(t testing.TB, name string) ([]float32, []int) {
	b, s := g.bytes(t, name)
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v, s
}

func sameBytes(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d bytes, recorded %d", what, len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%s: byte %d is %#02x, recorded %#02x", what, i, got[i], want[i])
		}
	}
}

func sameBits(t *testing.T, what string, got, want []uint16) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%s: element %d is %v, recorded %v", what, i, Wide(got[i]), Wide(want[i]))
		}
	}
}

// TestGoldenQuantisers holds codes, scales and values of every activation quantiser to the oracle's, bit for bit.
func TestGoldenQuantisers(t *testing.T) {
	for _, set := range []string{"tiny", "tiny-v4", "tiny-trained"} {
		g := load(t, set)
		x, shape := g.u16(t, "quant.x")
		rows, d := shape[0], shape[1]
		type form struct {
			name  string
			group int
			run   func(code []uint8, x []float64) uint8
			value func(c uint8, s float32) float32
			scale func(uint8) float32
		}
		e4, e2 := func(c uint8, s float32) float32 { return E4M3(c) * s }, func(c uint8, s float32) float32 { return E2M1(c) * s }
		for _, f := range []form{{"a8_32", 32, a8[float64], e4, E8M0}, {"a8_64", 64, a8[float64], e4, E8M0}, {"a8_128", 128, a8[float64], e4, E8M0},
			{"f4e8_32", 32, f4e8[float64], e2, E8M0}, {"f4e4_16", 16, f4e4[float64], e2, E4M3}} {
			codes, scales, vals := make([]byte, rows*d), []byte(nil), make([]uint16, rows*d)
			for i := 0; i < rows*d; i += f.group {
				v := make([]float64, f.group)
				widen(v, x[i:i+f.group])
				s := f.run(codes[i:i+f.group], v)
				scales = append(scales, s)
				for k := range v {
					vals[i+k] = BF16(f.value(codes[i+k], f.scale(s)))
				}
			}
			want, _ := g.bytes(t, "quant."+f.name+".codes")
			sameBytes(t, set+" "+f.name+" codes", codes, want)
			want, _ = g.bytes(t, "quant."+f.name+".scale")
			sameBytes(t, set+" "+f.name+" scales", scales, want)
			bits, _ := g.u16(t, "quant."+f.name+".value")
			sameBits(t, set+" "+f.name+" values", vals, bits)
		}
	}
}

// TestGoldenQuantizeOp runs the op itself over the recorded input, to records and to values.
func TestGoldenQuantizeOp(t *testing.T) {
	g := load(t, "tiny")
	x, shape := g.u16(t, "quant.x")
	rows, d := shape[0], shape[1]
	o := New[float32](nil)
	in := abi.Of(unsafe.Pointer(&x[0]), abi.BF16, int64(rows), int64(d))
	for _, f := range []struct {
		name   string
		format uint32
	}{{"a8_32", abi.RecA8x32}, {"f4e8_32", abi.RecF4E8x32}, {"f4e4_16", abi.RecF4E4x16}} {
		y := make([]uint16, rows*d)
		if err := o.Quantize(&abi.QuantizeArgs{Format: f.format, X: in, Y: abi.Of(unsafe.Pointer(&y[0]), abi.BF16, int64(rows), int64(d))}); err != nil {
			t.Fatal(err)
		}
		want, _ := g.u16(t, "quant."+f.name+".value")
		sameBits(t, f.name, y, want)
		rb := abi.RecordBytes(f.format, d, 0)
		rec := make([]byte, rows*rb)
		if err := o.Quantize(&abi.QuantizeArgs{Format: f.format, X: in, Y: abi.Of(unsafe.Pointer(&rec[0]), abi.U8, int64(rows), int64(rb))}); err != nil {
			t.Fatal(err)
		}
		v := make([]float32, d)
		for r := range rows {
			n := recordSplit(f.format, d, 0)
			decodeRecord(v, f.format, 0, rec[r*rb:r*rb+n], rec[r*rb+n:(r+1)*rb])
			for i := range v {
				if BF16(v[i]) != want[r*d+i] {
					t.Fatalf("%s: record %d element %d is %v, recorded %v", f.name, r, i, v[i], Wide(want[r*d+i]))
				}
			}
		}
	}
}

// TestGoldenWeights decodes the recorded weight codes in every quantised format.
func TestGoldenWeights(t *testing.T) {
	g := load(t, "tiny")
	for _, f := range []struct {
		name   string
		format uint32
		tile   uint32
	}{{"w8_32", abi.WFP8Tile, 32}, {"w8_128", abi.WFP8Tile, 128}, {"rows8", abi.WFP8Row, 32}, {"w4", abi.WMXFP4, 32}} {
		codes, _ := g.bytes(t, "quant."+f.name+".codes")
		scale, _ := g.bytes(t, "quant."+f.name+".scale")
		want, shape := g.u16(t, "quant."+f.name+".value")
		dp, sp := unsafe.Pointer(&codes[0]), unsafe.Pointer(&scale[0])
		w := &abi.Weight{Format: f.format, Tile: f.tile, Parts: 1, N: int64(shape[0]), K: int64(shape[1]), Data: unsafe.Pointer(&dp), Scale: unsafe.Pointer(&sp)}
		for i, v := range DecodeWeight[float64](w, 0) {
			if BF16(v) != want[i] || float64(Wide(want[i])) != v {
				t.Fatalf("%s: element %d is %v, recorded %v", f.name, i, v, Wide(want[i]))
			}
		}
	}
}

// TestGoldenRotation holds the FP32 cos and sin of both speed tables to the oracle's, bit for bit.
func TestGoldenRotation(t *testing.T) {
	for _, set := range []string{"tiny", "tiny-v4"} {
		g := load(t, set)
		pos, _ := g.bytes(t, "rope.pos")
		for _, table := range []string{"a", "b"} {
			freq, _ := g.f32(t, "rope."+table+".freq")
			wc, _ := g.f32(t, "rope."+table+".cos")
			ws, _ := g.f32(t, "rope."+table+".sin")
			cs, sn := make([]float32, len(freq)), make([]float32, len(freq))
			for i := range len(pos) / 4 {
				p := int(int32(binary.LittleEndian.Uint32(pos[4*i:])))
				cosSin(cs, sn, p, freq)
				for k := range freq {
					if cs[k] != wc[i*len(freq)+k] || sn[k] != ws[i*len(freq)+k] {
						t.Fatalf("%s table %s position %d speed %v: cos %v sin %v, recorded %v %v", set, table, p, freq[k], cs[k], sn[k], wc[i*len(freq)+k], ws[i*len(freq)+k])
					}
				}
			}
		}
	}
}
