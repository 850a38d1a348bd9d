// Package demo embeds "spark-mini", a small trained model of DeepSeek-V4.1's shape, so that the binary answers without any download.
//
// Files is the checkpoint directory. The build tag nodemo leaves the weights out and Files is nil. Where the weights come from: README.md in this
// directory and NOTICE. Read-only, safe for concurrent use.
package demo
