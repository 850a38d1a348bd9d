package serve

import (
	"context"
	"errors"
	"image"
	"image/color"
	"strings"

	"golang.org/x/image/draw"

	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/core/model/vision"
	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
)

const lowSide = 512 // longer side of an image with detail "low"

// decodeImages turns the pictures of a conversation into patches, in the order of Conversation.Images.
func (m *Model) decodeImages(ctx context.Context, conv *conversation.Conversation) ([]*vision.Patches, error) {
	if len(conv.Images) == 0 {
		return nil, nil
	}
	v := m.Model.Config.Vision
	where := func(img *conversation.Image) string {
		if img.Path != "" {
			return strings.TrimPrefix(img.Path, ".")
		}
		return "messages"
	}
	if v == nil {
		return nil, protocol.Invalid(where(&conv.Images[0]), "The model %s takes no images: its checkpoint has no vision tower.", m.Name).WithCode("images_not_supported")
	}
	select { // decoding takes memory and a whole core
	case m.images <- struct{}{}:
		defer func() { <-m.images }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var out []*vision.Patches
	for i := range conv.Images {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		img := &conv.Images[i]
		bad := func(err error) error {
			e := protocol.Invalid(where(img), "The image cannot be used: %v.", err)
			e.Code = "invalid_image"
			return e
		}
		raw, err := imageBytes(img)
		if err != nil {
			return nil, bad(err)
		}
		rgb, err := vision.Decode(raw, vision.Limits{})
		if err != nil {
			return nil, bad(err)
		}
		if img.Detail == conversation.DetailLow {
			rgb = shrink(rgb)
		}
		p, err := vision.Preprocess(v, rgb)
		if err != nil {
			return nil, bad(err)
		}
		out = append(out, p)
	}
	return out, nil
}

func imageBytes(img *conversation.Image) ([]byte, error) {
	switch img.Kind {
	case conversation.ImageBytes:
		return img.Data, nil
	case conversation.ImageDataURL:
		head, data, ok := strings.Cut(img.URL, ",")
		if !ok || !strings.HasSuffix(head, ";base64") {
			return nil, errors.New("want a data: URL with base64 data")
		}
		raw, ok := protocol.DecodeBase64(data)
		if !ok {
			return nil, errors.New("the base64 data of the data: URL is damaged")
		}
		return raw, nil
	}
	return nil, errors.New("this server fetches nothing from other machines; send the picture itself as a data: URL")
}

// shrink scales the longer side down to lowSide.
func shrink(in *vision.RGB) *vision.RGB {
	long := max(in.W, in.H)
	if long <= lowSide {
		return in
	}
	scale := func(side int) int { return max(1, (side*lowSide+long/2)/long) }
	src := image.NewRGBA(image.Rect(0, 0, in.W, in.H))
	for i := range in.W * in.H {
		src.SetRGBA(i%in.W, i/in.W, color.RGBA{R: in.Pix[3*i], G: in.Pix[3*i+1], B: in.Pix[3*i+2], A: 255})
	}
	w, h := scale(in.W), scale(in.H)
	dst := image.NewRGBA(image.Rect(0, 0, w, h))
	draw.CatmullRom.Scale(dst, dst.Bounds(), src, src.Bounds(), draw.Src, nil)
	out := &vision.RGB{W: w, H: h, Pix: make([]byte, 0, 3*w*h)}
	for i := range w * h {
		c := dst.RGBAAt(i%w, i/w)
		out.Pix = append(out.Pix, c.R, c.G, c.B)
	}
	return out
}

// placeImages widens each placeholder of the prompt to the positions its image takes and computes their rows. fits is asked with the new length before
// anything is computed.
func (m *Model) placeImages(ctx context.Context, p *encoding.Prompt, imgs []*vision.Patches, fits func(tokens int) error) ([]engine.ImageRows, error) {
	if len(p.Images) == 0 {
		return nil, nil
	}
	id := int32(m.Model.Config.ImageTokenID)
	var ids []int32
	var rows []engine.ImageRows
	at := 0
	for i := range p.Images {
		span := &p.Images[i]
		ids = append(ids, p.Tokens[at:span.Start]...)
		at = span.Start + span.Tokens
		rows = append(rows, engine.ImageRows{Start: len(ids)})
		for range imgs[span.Image].Plan.Tokens() {
			ids = append(ids, id)
		}
	}
	p.Tokens = append(ids, p.Tokens[at:]...)
	if err := fits(len(p.Tokens)); err != nil {
		return nil, err
	}
	done := make([][]uint16, len(imgs)) // an image may stand in several places
	for i := range p.Images {
		k := p.Images[i].Image
		if done[k] == nil {
			plan := imgs[k].Plan
			cells, err := m.Engine.EncodeImage(ctx, imgs[k].Data, plan.PatchH, plan.PatchW)
			if err != nil {
				return nil, err
			}
			if done[k], err = m.Model.SpanRows(cells, plan.GridH, plan.GridW); err != nil {
				return nil, err
			}
		}
		rows[i].Rows = done[k]
	}
	return rows, nil
}
