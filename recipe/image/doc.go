// Package image plans how large a picture is sent to the model and how many prompt tokens it takes (V4.1). It decodes and scales
// nothing: the pixel work belongs to whoever runs the vision encoder, which must use the same plan.
//
// The main function is [Fit]; recipe/encoding calls it to expand image placeholders. Everything is a pure function.
//
//	p, err := image.Fit(1000, 800, conversation.DetailHigh)
//	// p.Width, p.Height = 1008, 812; p.Columns, p.Rows = 24, 20; p.Tokens() = 502
package image
