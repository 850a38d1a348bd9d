// Package checkpoint opens safetensors checkpoints in the release format and checks them against a model configuration.
//
// The main type is [Checkpoint]: [Open] maps the shards of a directory into memory, [Checkpoint.Tensor] gives a named tensor
// with its bytes and with the file and offset they lie at, so that a worker process can map the same pages. [Inventory] computes from a
// configuration every tensor that a checkpoint must hold, and [Verify] reports everything that differs. The engine opens a checkpoint at start-up
// and keeps it until shutdown; `deepinfer model verify` prints the problems.
//
// A Checkpoint is safe for concurrent use until Close. The bytes of a tensor are read-only and must not be used
// after Close.
//
//	ck, err := checkpoint.Open(dir)
//	if err != nil {
//		return err
//	}
//	defer ck.Close()
//	if problems := checkpoint.Verify(ck, cfg); len(problems) > 0 {
//		return checkpoint.Join(problems)
//	}
//	w, ok := ck.Tensor("layers.0.attn.wq_a.weight")
package checkpoint
