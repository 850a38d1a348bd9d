// Command tokenizer times recipe/token on one text file for compare.py.
//
//	tokenizer [-rounds 5] FILE
//
// It prints one JSON object: the ids, and the median seconds of one encoding.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/deepinfer-go/deepinfer/recipe/token/release"
)

func main() {
	rounds := flag.Int("rounds", 5, "runs to take the median of")
	flag.Parse()
	if flag.NArg() != 1 || *rounds < 1 {
		fmt.Fprintln(os.Stderr, "usage: tokenizer [-rounds N] FILE")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "tokenizer:", err)
		os.Exit(1)
	}
}

func run(path string, rounds int) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	tok, err := release.Load(release.V4)
	if err != nil {
		return err
	}
	text := string(data)
	var ids []int32
	seconds := make([]float64, rounds)
	for i := range seconds {
		start := time.Now()
		ids = tok.Encode(text)
		seconds[i] = time.Since(start).Seconds()
	}
	slices.Sort(seconds)
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"ids": ids, "seconds": seconds[rounds/2]})
}
