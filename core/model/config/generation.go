package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
)

// Generation holds the sampling defaults of a checkpoint's generation_config.json.
type Generation struct {
	DoSample    bool    // false: greedy
	Temperature float64 // 0 to 100; 1 where the file has none
	TopP        float64 // above 0, up to 1; 1 where the file has none
	TopK        int     // 0: no limit
	EOSTokenIDs []int   // ids that end a sequence; never empty
	Found       bool    // false: there was no file and these are the general defaults
}

// LoadGeneration reads dir/generation_config.json. A missing file is not an error: it gives sampling at temperature 1
// and top-p 1, and the end tokens of cfg. All problems of the content are returned at once.
func LoadGeneration(dir string, cfg *Config) (Generation, error) {
	return LoadGenerationFS(os.DirFS(dir), dir, cfg)
}

// LoadGenerationFS is LoadGeneration on a file system; name names it in errors.
func LoadGenerationFS(files fs.FS, name string, cfg *Config) (Generation, error) {
	g := Generation{DoSample: true, Temperature: 1, TopP: 1, EOSTokenIDs: cfg.EOSTokenIDs}
	const file = "generation_config.json"
	raw, err := readLimited(files, file)
	if errors.Is(err, fs.ErrNotExist) {
		return g, nil
	}
	if err != nil {
		return g, fmt.Errorf("read the generation defaults of %s: %w", name, err)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return g, fmt.Errorf("%s: want one JSON object: %w", path.Join(name, file), err)
	}
	g.Found = true
	d := &document{values: map[string]value{}}
	for key, raw := range members {
		d.values[key] = value{path: key, raw: raw}
	}
	d.must("do_sample", true, false)
	if v, ok := d.values["do_sample"]; ok {
		g.DoSample = string(v.raw) != "false"
	}
	g.Temperature = d.number("temperature", 1, 0, 100, "a number from 0 to 100")
	g.TopP = d.number("top_p", 1, 1e-9, 1, "a number above 0, up to 1")
	g.TopK = d.count("top_k", 0, 0, 1<<24)
	if _, ok := d.values["eos_token_id"]; ok {
		g.EOSTokenIDs = d.eos(cfg.EOSTokenID, cfg.VocabSize-1)
	}
	if err := errors.Join(d.problems...); err != nil {
		return g, fmt.Errorf("%s:\n%w", path.Join(name, file), err)
	}
	return g, nil
}
