// Package catalog finds backends that come as shared objects: it reads manifests (NAME.backend.hcl), checks everything that can be checked without loading, and picks one.
//
// The main type is Entry, one manifest with what is wrong with it. cmd wires it: Scan over the configured directories, Choose with the configured name, then
// plugins/launch seals the library and starts a worker. Nothing is searched but the directories given.
//
//	entries := catalog.Scan(dirs, catalog.Options{})
//	entry, err := catalog.Choose(entries, "cpu")
//
// Concurrency: functions without state; entries are plain values.
package catalog
