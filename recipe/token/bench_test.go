package token_test

import (
	"os"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/token"
	"github.com/deepinfer-go/deepinfer/recipe/token/tokentest"
)

func BenchmarkParse(b *testing.B) {
	data := tokentest.JSON(b, "v4")
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := token.Parse(data); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEncode measures text kinds; "file" is the text named by TOKEN_BENCH_FILE.
func BenchmarkEncode(b *testing.B) {
	tok := tokentest.Load(b, "v4.1")
	texts := map[string]string{
		"english": strings.Repeat("The quick brown fox jumps over the lazy dog, and then it wonders why anybody would ask for it; 42 times. ", 1000),
		"chinese": strings.Repeat("人工智能是计算机科学的一个分支，它企图了解智能的实质，并生产出一种新的能以人类智能相似的方式做出反应的智能机器。", 500),
		"code":    strings.Repeat("func (w *worker) plain(dst []int32, text string) []int32 {\n\ts := scanner{text: text}\n\tfor s.pos < len(text) {\n\t\treturn nil // why?\n\t}\n}\n", 500),
		"letters": strings.Repeat("abcdefgh", 1<<17),
	}
	if path := os.Getenv("TOKEN_BENCH_FILE"); path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			b.Fatal(err)
		}
		texts["file"] = string(data)
	}
	for name, text := range texts {
		b.Run(name, func(b *testing.B) {
			var dst []int32
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				dst = tok.AppendEncode(dst[:0], text)
			}
			b.ReportMetric(float64(len(dst))*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

func BenchmarkStream(b *testing.B) {
	tok := tokentest.Load(b, "v4.1")
	ids := tok.Encode(strings.Repeat("The quick brown fox, 你好 and 😀🎉. ", 100))
	s := token.NewStream(tok)
	b.ReportAllocs()
	for b.Loop() {
		for _, id := range ids {
			s.Push(id)
		}
	}
	b.ReportMetric(float64(len(ids))*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
}
