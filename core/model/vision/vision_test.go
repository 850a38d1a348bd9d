package vision

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/crc32"
	"image"
	"image/color"
	"image/png"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/core/model/config"
	"github.com/deepinfer-go/deepinfer/internal/fixture"
)

var (
	release = &Config{PatchSize: 14, DownsampleRatio: 3, MaxImageTokens: 1024, MinPixels: 295936}
	tiny    = &Config{PatchSize: 14, DownsampleRatio: 3, MaxImageTokens: 64, MinPixels: 7056}
)

type planned struct {
	Best    [4]int       `json:"best_w_best_h_nw_nh"`
	Fitted  [4]int       `json:"fitted_w_h_left_top"`
	Grid    [2]int       `json:"grid_h_w"`
	Canvas  string       `json:"canvas_sha256"`
	Pixels  [][5]int     `json:"canvas_rgb"`
	Patches string       `json:"patches_sha256"`
	Values  [][3]float64 `json:"values"`
}

type goldenImages struct {
	Table  string `json:"pixel_table_sha256"`
	Images []struct {
		File    string
		W, H    int
		RGB     string `json:"rgb_sha256"`
		Release planned
		Tiny    planned
	}
}

func golden(t testing.TB) (g goldenImages) {
	t.Helper()
	if err := json.Unmarshal(fixture.Read(t, "image/images.json"), &g); err != nil {
		t.Fatal(err)
	}
	return g
}

func hash(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

func hash16(v []uint16) string {
	raw := make([]byte, 0, 2*len(v))
	for _, x := range v {
		raw = binary.LittleEndian.AppendUint16(raw, x)
	}
	return hash(raw)
}

func TestGoldenImages(t *testing.T) {
	g := golden(t)
	table := pixelTable()
	if got := hash16(table[:]); got != g.Table {
		t.Errorf("pixel table %s, want %s", got, g.Table)
	}
	if len(g.Images) < 6 {
		t.Fatalf("%d images", len(g.Images))
	}
	for _, item := range g.Images {
		img, err := Decode(fixture.Read(t, "image/"+item.File), Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if img.W != item.W || img.H != item.H || hash(img.Pix) != item.RGB {
			t.Fatalf("%s: decoded %d x %d, %s", item.File, img.W, img.H, hash(img.Pix))
		}
		for name, c := range map[string]struct {
			config *Config
			want   planned
		}{"release": {release, item.Release}, "tiny": {tiny, item.Tiny}} {
			canvas, p, err := Canvas(c.config, img)
			if err != nil {
				t.Fatal(err)
			}
			if got := [4]int{p.Width, p.Height, p.GridW, p.GridH}; got != c.want.Best {
				t.Errorf("%s %s: plan %v, want %v", item.File, name, got, c.want.Best)
			}
			if got := [4]int{p.FitW, p.FitH, p.Left, p.Top}; got != c.want.Fitted {
				t.Errorf("%s %s: fitted %v, want %v", item.File, name, got, c.want.Fitted)
			}
			if got := [2]int{p.PatchH, p.PatchW}; got != c.want.Grid {
				t.Errorf("%s %s: grid %v, want %v", item.File, name, got, c.want.Grid)
			}
			for _, px := range c.want.Pixels {
				at := 3 * (px[1]*canvas.W + px[0])
				if got := canvas.Pix[at : at+3]; int(got[0]) != px[2] || int(got[1]) != px[3] || int(got[2]) != px[4] {
					t.Errorf("%s %s: pixel %v is %v", item.File, name, px, got)
				}
			}
			if hash(canvas.Pix) != c.want.Canvas {
				t.Errorf("%s %s: canvas differs", item.File, name)
			}
			patches, err := Preprocess(c.config, img)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range c.want.Values {
				bits := patches.Data[int(v[0])*patches.Len+int(v[1])]
				if got := math.Float32frombits(uint32(bits) << 16); float64(got) != v[2] {
					t.Errorf("%s %s: patch %v value %v is %v, want %v", item.File, name, v[0], v[1], got, v[2])
				}
			}
			if hash16(patches.Data) != c.want.Patches || patches.Count*patches.Len != len(patches.Data) {
				t.Errorf("%s %s: patches differ", item.File, name)
			}
		}
	}
}

func TestGoldenPlans(t *testing.T) {
	var g struct {
		Plans []struct {
			W, H int
			Best [4]int `json:"best_w_best_h_nw_nh"`
		} `json:"image_plan"`
	}
	if err := json.Unmarshal(fixture.Read(t, "model/tiny/golden.json"), &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Plans) == 0 {
		t.Fatal("no plans")
	}
	cfg, err := config.Parse(fixture.Read(t, "model/tiny/checkpoint/config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range g.Plans {
		p, err := NewPlan(cfg.Vision, c.W, c.H)
		if got := [4]int{p.Width, p.Height, p.GridW, p.GridH}; err != nil || got != c.Best {
			t.Errorf("%d x %d: %v, %v, want %v", c.W, c.H, got, err, c.Best)
		}
	}
}

// Token counts that the release's own front reports.
func TestTokensOfTheRelease(t *testing.T) {
	for _, c := range [][3]int{{1, 1, 184}, {43, 42, 197}, {544, 544, 184}, {545, 545, 184}, {640, 480, 206}, {800, 600, 317}, {1024, 768, 496},
		{1280, 720, 578}, {1345, 1345, 994}, {1920, 1080, 968}, {1080, 1920, 986}, {8000, 8000, 994}, {10000, 100, 722}, {100, 10000, 958},
		{20000, 10, 583}, {10, 20000, 1024}, {1000, 1, 413}, {1, 1000, 822}, {2000, 1000, 992}, {1000, 2000, 1014}, {1400, 1260, 959}, {42000, 42, 1003}} {
		p, err := NewPlan(release, c[0], c[1])
		if err != nil || p.Tokens() != c[2] {
			t.Errorf("%d x %d: %d tokens, %v, want %d", c[0], c[1], p.Tokens(), err, c[2])
		}
	}
}

func TestEverySizeHasAPlanWithinItsLimit(t *testing.T) {
	sides := []int{1, 2, 3, 13, 14, 15, 41, 42, 43, 99, 100, 543, 544, 545, 1000, 1321, 4095, 8192, 65536, 1 << 24}
	for _, v := range []*Config{release, tiny, {PatchSize: 14, DownsampleRatio: 3, MaxImageTokens: 1024, MinPixels: 295936, MaxWHRatio: 3}} {
		for _, w := range sides {
			for _, h := range sides {
				p, err := NewPlan(v, w, h)
				if err != nil {
					t.Errorf("%d x %d: %v", w, h, err)
					continue
				}
				if p.Tokens() > v.MaxImageTokens || p.Width%v.PatchSize != 0 || p.Height%v.PatchSize != 0 || p.FitW < 1 || p.FitH < 1 ||
					p.Left < 0 || p.Top < 0 || p.Left+p.FitW > p.Width || p.Top+p.FitH > p.Height {
					t.Errorf("%d x %d: %+v with %d tokens", w, h, p, p.Tokens())
				}
			}
		}
	}
	for _, c := range [][2]int{{0, 5}, {5, 0}, {-1, 5}, {1<<24 + 1, 5}} {
		if _, err := NewPlan(release, c[0], c[1]); err == nil || !strings.Contains(err.Error(), "want sides of 1 to") {
			t.Errorf("%v: %v", c, err)
		}
	}
}

func TestRatioLimitStretches(t *testing.T) {
	v := *release
	v.MaxWHRatio = 2
	p, err := NewPlan(&v, 4000, 1000)
	if err != nil || p.FitW != p.Width || p.FitH != p.Height || p.Left != 0 || p.Top != 0 {
		t.Errorf("%+v %v", p, err)
	}
	if limited, _ := NewPlan(&v, 2000, 1000); limited.Width != p.Width || limited.Height != p.Height {
		t.Errorf("%+v, %+v", limited, p)
	}
}

func TestLayout(t *testing.T) {
	got := Plan{GridW: 2, GridH: 3}.Layout()
	want := []Role{Start, Cell, Cell, Newline, Cell, Cell, Newline, Cell, Cell, Newline, End}
	if !slices.Equal(got, want) || len(got) != (Plan{GridW: 2, GridH: 3}).Tokens() {
		t.Errorf("%v", got)
	}
}

func unbase(t testing.TB, s string) []byte {
	t.Helper()
	raw, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// Files written by Pillow 12.3: 3 x 2 pixels, number i being (10i, 20i, 255-30i).
const (
	bmpFile   = "Qk1OAAAAAAAAADYAAAAoAAAAAwAAAAIAAAABABgAAAAAABgAAADEDgAAxA4AAAAAAAAAAAAApTweh1AoaWQyAAAA/wAA4RQKwygUAAAA"
	webpFile  = "UklGRjAAAABXRUJQVlA4TCMAAAAvAkAAAC8gEEiC2F92iVG4+P/8J5ehpm0DNtT5l1Mj+h/TCwA="
	webpExif8 = "UklGRmQAAABXRUJQVlA4WAoAAAAIAAAAAgAAAQAAVlA4TCMAAAAvAkAAAC8gEEiC2F92iVG4+P/8J5ehpm0DNtT5l1Mj+h/TCwBFWElGGgAAAE1NACoAAAAIAAEBEgADAAAAAQAIAAAAAAAA"
	webpAlpha = "UklGRh4AAABXRUJQVlA4TBEAAAAvAQAAEA8QQzbIAxg4MqL/AQA="
	gifFile   = "R0lGODlhBAADAIEAAP8AAAD/AAAA/wAAACH5BAEAAAEALAAAAAAEAAMAAAgMAAEEEABAIEGDAAICADs="
	jpegExif8 = "/9j/4AAQSkZJRgABAQAAAQABAAD/4QAiRXhpZgAATU0AKgAAAAgAAQESAAMAAAABAAgAAAAAAAD/2wBDAAIBAQEBAQIBAQECAgICAgQDAgICAgUEBAMEBgUGBgYFBgYGBwkIBgcJBwYGCAsICQoKCgoKBggLDAsKDAkKCgr/2wBDAQICAgICAgUDAwUKBwYHCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgr/wAARCAAIABADASIAAhEBAxEB/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QAtRAAAgEDAwIEAwUFBAQAAAF9AQIDAAQRBRIhMUEGE1FhByJxFDKBkaEII0KxwRVS0fAkM2JyggkKFhcYGRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJipKTlJWWl5iZmqKjpKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6/8QAHwEAAwEBAQEBAQEBAQAAAAAAAAECAwQFBgcICQoL/8QAtREAAgECBAQDBAcFBAQAAQJ3AAECAxEEBSExBhJBUQdhcRMiMoEIFEKRobHBCSMzUvAVYnLRChYkNOEl8RcYGRomJygpKjU2Nzg5OkNERUZHSElKU1RVVldYWVpjZGVmZ2hpanN0dXZ3eHl6goOEhYaHiImKkpOUlZaXmJmaoqOkpaanqKmqsrO0tba3uLm6wsPExcbHyMnK0tPU1dbX2Nna4uPk5ebn6Onq8vP09fb3+Pn6/9oADAMBAAIRAxEAPwD5Hooor8fP9UD/2Q=="
)

func pixelNumbers(t testing.TB, img *RGB) []int {
	t.Helper()
	var out []int
	for i := 0; i < len(img.Pix); i += 3 {
		n := int(img.Pix[i]) / 10
		if int(img.Pix[i]) != 10*n || int(img.Pix[i+1]) != 20*n || int(img.Pix[i+2]) != 255-30*n {
			t.Fatalf("pixel %d is %v", i/3, img.Pix[i:i+3])
		}
		out = append(out, n)
	}
	return out
}

func TestFormats(t *testing.T) {
	for name, file := range map[string]string{"BMP": bmpFile, "WebP": webpFile} {
		img, err := Decode(unbase(t, file), Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if got := pixelNumbers(t, img); img.W != 3 || !slices.Equal(got, []int{0, 1, 2, 3, 4, 5}) {
			t.Errorf("%s: %v", name, got)
		}
	}
	img, err := Decode(unbase(t, gifFile), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if want := []byte{255, 0, 0, 255, 255, 255, 0, 0, 255, 255, 0, 0}; img.W != 4 || img.H != 3 || !bytes.Equal(img.Pix[:12], want) {
		t.Errorf("GIF: %v", img)
	}
	img, err = Decode(unbase(t, webpAlpha), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	// (100,0,200) at alpha 128 and (0,0,0) at alpha 0, over white.
	if want := []byte{177, 127, 227, 255, 255, 255}; !bytes.Equal(img.Pix, want) {
		t.Errorf("alpha: %v, want %v", img.Pix, want)
	}
	for name, c := range map[string]image.Image{
		"gray": func() image.Image {
			m := image.NewGray(image.Rect(0, 0, 1, 1))
			m.SetGray(0, 0, color.Gray{77})
			return m
		}(),
		"deep": func() image.Image {
			m := image.NewNRGBA64(image.Rect(0, 0, 1, 1))
			m.SetNRGBA64(0, 0, color.NRGBA64{77 * 257, 77 * 257, 77 * 257, 0xffff})
			return m
		}(),
	} {
		var b bytes.Buffer
		if err := png.Encode(&b, c); err != nil {
			t.Fatal(err)
		}
		if img, err := Decode(b.Bytes(), Limits{}); err != nil || !bytes.Equal(img.Pix, []byte{77, 77, 77}) {
			t.Errorf("%s: %v %v", name, img, err)
		}
	}
}

// exifPNG is the numbered image with an eXIf chunk that holds one orientation.
func exifPNG(t testing.TB, turn int, order binary.AppendByteOrder) []byte {
	t.Helper()
	m := image.NewNRGBA(image.Rect(0, 0, 3, 2))
	for i := range 6 {
		m.SetNRGBA(i%3, i/3, color.NRGBA{byte(10 * i), byte(20 * i), byte(255 - 30*i), 255})
	}
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	body := []byte("eXIfMM\x00*")
	if order == binary.AppendByteOrder(binary.LittleEndian) {
		body = []byte("eXIfII*\x00")
	}
	body = order.AppendUint32(body, 8)
	body = order.AppendUint16(body, 1)
	body = order.AppendUint16(body, 0x0112)
	body = order.AppendUint16(body, 3)
	body = order.AppendUint32(body, 1)
	body = order.AppendUint16(body, uint16(turn))
	body = append(body, 0, 0, 0, 0, 0, 0)
	chunk := binary.BigEndian.AppendUint32(nil, uint32(len(body)-4))
	chunk = append(chunk, body...)
	chunk = binary.BigEndian.AppendUint32(chunk, crc32.ChecksumIEEE(body))
	const head = 8 + 25 // signature and IHDR
	raw := b.Bytes()
	return slices.Concat(raw[:head], chunk, raw[head:])
}

func TestOrientationIsApplied(t *testing.T) {
	// Pixel numbers after Pillow's ImageOps.exif_transpose.
	want := map[int][]int{
		0: {0, 1, 2, 3, 4, 5}, 1: {0, 1, 2, 3, 4, 5}, 2: {2, 1, 0, 5, 4, 3}, 3: {5, 4, 3, 2, 1, 0}, 4: {3, 4, 5, 0, 1, 2},
		5: {0, 3, 1, 4, 2, 5}, 6: {3, 0, 4, 1, 5, 2}, 7: {5, 2, 4, 1, 3, 0}, 8: {2, 5, 1, 4, 0, 3}, 9: {0, 1, 2, 3, 4, 5},
	}
	for turn, numbers := range want {
		for _, order := range []binary.AppendByteOrder{binary.BigEndian, binary.LittleEndian} {
			raw := exifPNG(t, turn, order)
			img, err := Decode(raw, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			w, h := 3, 2
			if turn >= 5 && turn <= 8 {
				w, h = 2, 3
			}
			if got := pixelNumbers(t, img); img.W != w || img.H != h || !slices.Equal(got, numbers) {
				t.Errorf("orientation %d: %d x %d %v, want %v", turn, img.W, img.H, got, numbers)
			}
			if sw, sh, err := Size(raw, Limits{}); sw != w || sh != h || err != nil {
				t.Errorf("orientation %d: size %d x %d, %v", turn, sw, sh, err)
			}
		}
	}
	if img, err := Decode(unbase(t, jpegExif8), Limits{}); err != nil || img.W != 8 || img.H != 16 {
		t.Errorf("JPEG: %v", err)
	}
	img, err := Decode(unbase(t, webpExif8), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if got := pixelNumbers(t, img); !slices.Equal(got, want[8]) {
		t.Errorf("WebP: %v", got)
	}
}

func TestLimitsAndDamage(t *testing.T) {
	dot := fixture.Read(t, "image/dot.png")
	huge := slices.Clone(dot)
	binary.BigEndian.PutUint32(huge[16:], 1<<30)
	binary.BigEndian.PutUint32(huge[29:], crc32.ChecksumIEEE(huge[12:29]))
	for _, c := range []struct {
		name   string
		raw    []byte
		limits Limits
		want   error
		text   string
	}{
		{"empty", nil, Limits{}, ErrFormat, "0 bytes"},
		{"text", []byte("<svg/>"), Limits{}, ErrFormat, "want PNG, JPEG, GIF, WebP or BMP"},
		{"cut", dot[:40], Limits{}, ErrFormat, "PNG"},
		{"cut JPEG", unbase(t, jpegExif8)[:200], Limits{}, ErrFormat, "JPEG"},
		{"bytes", dot, Limits{MaxBytes: 10}, ErrTooLarge, "the limit is 10"},
		{"side", dot, Limits{MaxSide: 2}, ErrTooLarge, "3 x 2 pixels"},
		{"pixels", dot, Limits{MaxPixels: 5}, ErrTooLarge, "5 in all"},
		{"bomb", huge, Limits{}, ErrTooLarge, "1073741824 x 2 pixels"},
	} {
		img, err := Decode(c.raw, c.limits)
		if img != nil || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := Preprocess(tiny, &RGB{W: 2, H: 2, Pix: make([]byte, 3)}); err == nil {
		t.Error("an image with too few bytes was accepted")
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{bmpFile, webpFile, webpExif8, webpAlpha, gifFile, jpegExif8} {
		f.Add(unbase(f, s))
	}
	f.Add(exifPNG(f, 6, binary.LittleEndian))
	f.Fuzz(func(t *testing.T, raw []byte) {
		img, err := Decode(raw, Limits{MaxSide: 256})
		if err != nil {
			if !errors.Is(err, ErrFormat) && !errors.Is(err, ErrTooLarge) {
				t.Fatalf("unclassified error: %v", err)
			}
			return
		}
		if len(img.Pix) != 3*img.W*img.H || img.W < 1 || img.H < 1 {
			t.Fatalf("%d x %d with %d bytes", img.W, img.H, len(img.Pix))
		}
	})
}

func BenchmarkPreprocess(b *testing.B) {
	img, err := Decode(fixture.Read(b, "image/large.png"), Limits{})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(img.Pix)))
	for b.Loop() {
		if _, err := Preprocess(release, img); err != nil {
			b.Fatal(err)
		}
	}
}
