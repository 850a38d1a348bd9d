package controlpb

// Needs protoc on PATH (Debian: protobuf-compiler; or `pip install grpcio-tools` and `python -m grpc_tools.protoc`) and the two Go generators:
//
//	go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.11
//	go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
//go:generate protoc -I . --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative control.proto
