package token

// SmallFile is a small valid tokenizer.json for tests outside the package.
func SmallFile() []byte { return smallFile() }
