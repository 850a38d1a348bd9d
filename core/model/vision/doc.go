// Package vision prepares images for the vision tower: it decodes a file, plans the size, resizes and pads the pixels and cuts
// them into normalised patches. The tower itself is a graph in core/model.
//
// The main type is [Patches], the BF16 input of the tower; [Preprocess] makes it from decoded pixels ([Decode]) and
// [Config] says how. [NewPlan] answers how many tokens an image takes without touching its pixels, and [Plan.Layout] says what each
// position of the span is. core/serve calls Decode and Preprocess when it admits a request with images.
//
// The pixels are those of the reference: Pillow's 8-bit bicubic filter (versions up to 12), byte for byte. Two things the
// reference leaves to its caller are fixed here: transparent pixels are composited over white, and an EXIF orientation is applied, so that the
// model sees what a viewer shows. Of an animation the first frame counts.
//
// Functions are pure and safe for concurrent use.
//
//	img, err := vision.Decode(raw, vision.Limits{})
//	if err != nil {
//		return err
//	}
//	patches, err := vision.Preprocess(cfg.Vision, img)
package vision
