// Package pyjson reads JSON without losing key order or number spelling, and prints it the way it stands in prompts: as Python's
// json.dumps(v, ensure_ascii=False) would.
//
// The main type is [Value], made by [Parse] and printed by [Value.Append]. recipe/encoding prints tool schemas and call arguments with
// it, protocol packages use it for ordered objects. A Value is a plain tree: many goroutines may read one.
//
//	v, err := pyjson.Parse([]byte(`{"b":1e5,"a":["é"]}`))
//	v.String(pyjson.Python) // {"b": 100000.0, "a": ["é"]}
package pyjson
