// Package config reads the configuration of a DeepSeek-V4.1 or DeepSeek-V4 checkpoint and refuses, by name, everything that
// this engine does not serve.
//
// The main type is [Config]: the keys of config.json as typed fields plus the questions the rest of the engine asks
// ([Config.Ratio], [Config.KVSource], [Config.DecoderStart], ...). [Load] reads a checkpoint directory, [Parse] a document. Both take the
// nested Transformers form (text_config, vision_config), the Transformers form without nesting, and the flat form of
// inference/config.json; the spellings of all three are accepted. [LoadGeneration] reads the sampling defaults of
// generation_config.json.
//
// core/model builds graphs from a Config, core/model/checkpoint computes the tensor inventory from it. A Config is read-only after it is
// returned and safe for concurrent use.
//
//	cfg, err := config.Load(dir)
//	if err != nil {
//		return err // every problem, one per line; errors.As with *config.Problem gives the first
//	}
//	for layer := range cfg.NumHiddenLayers {
//		fmt.Println(layer, cfg.Ratio(layer), cfg.KVSource(layer))
//	}
package config
