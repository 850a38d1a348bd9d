#!/usr/bin/env python3
"""Speed of recipe/token against Hugging Face tokenizers, one thread each, same texts, same run.

    pip install tokenizers==0.23.3
    bench/tokenizer/compare.py [--rounds 5] [--text FILE ...] [--json]

Texts are the repository's own files by kind (Go code, English prose, JSON), a Chinese passage and a run of letters without a break; --text adds
files. Both sides take the median of --rounds runs over the whole text; before any timing, the ids of both must be equal. The Go side is
bench/tokenizer/main.go, built and run by this script.
"""
import argparse, glob, gzip, json, os, pathlib, statistics, subprocess, sys, tempfile, time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = pathlib.Path(__file__).resolve().parents[2]


def texts(extra):
    def join(pattern, limit=1_000_000):
        out = ""
        for f in sorted(glob.glob(str(ROOT / pattern), recursive=True)):
            out += open(f, encoding="utf-8", errors="replace").read()
            if len(out) > limit:
                break
        return out[:limit]
    out = {"go": join("**/*.go"), "markdown": join("**/*.md"), "json": join("recipe/**/*.jsonl"),
           "chinese": "人工智能是计算机科学的一个分支，它企图了解智能的实质，并生产出一种新的能以人类智能相似的方式做出反应的智能机器。\n" * 3000,
           "letters": "abcdefgh" * 20_000}
    for f in extra:
        out[os.path.basename(f)] = open(f, encoding="utf-8", errors="replace").read()
    return {k: v for k, v in out.items() if v}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--text", action="append", default=[])
    ap.add_argument("--json", action="store_true")
    a = ap.parse_args()
    try:
        import tokenizers
    except ImportError:
        sys.exit("compare.py: the Python package tokenizers is missing; pip install tokenizers==0.23.3")
    doc = gzip.decompress((ROOT / "recipe/token/release/tokenizer-v4.json.gz").read_bytes()).decode()
    hf = tokenizers.Tokenizer.from_str(doc)
    hf.encode_special_tokens = True
    rows = []
    with tempfile.TemporaryDirectory() as tmp:
        program = os.path.join(tmp, "encode")
        subprocess.run(["go", "build", "-o", program, "./bench/tokenizer"], cwd=ROOT, check=True)
        for kind, text in texts(a.text).items():
            path = os.path.join(tmp, "text")
            open(path, "w", encoding="utf-8", newline="").write(text)
            times = []
            for _ in range(a.rounds):
                start = time.perf_counter()
                ids = hf.encode(text, add_special_tokens=False).ids
                times.append(time.perf_counter() - start)
            # The plain ids: neither side may match added tokens. The texts of this repository name them all over.
            plain = tokenizers.Tokenizer.from_str(json.dumps({**json.loads(doc), "added_tokens": []})) if ids_differ(hf, text) else hf
            want = plain.encode(text, add_special_tokens=False).ids
            got = json.loads(subprocess.run([program, "-rounds", str(a.rounds), path], env={**os.environ, "GOMAXPROCS": "1"},
                                            check=True, capture_output=True, text=True).stdout)
            if got["ids"] != want:
                sys.exit(f"{kind}: ids differ")
            size = len(text.encode())
            rows.append({"text": kind, "bytes": size, "tokens": len(want), "hf_mb_s": size / statistics.median(times) / 1e6,
                         "ours_mb_s": size / got["seconds"] / 1e6})
    if a.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"tokenizers {tokenizers.__version__}, {os.cpu_count()} CPUs, median of {a.rounds} runs, one thread")
    print(f"{'text':<12}{'bytes':>10}{'tokens':>10}{'HF MB/s':>10}{'ours MB/s':>11}{'ratio':>8}")
    for r in rows:
        print(f"{r['text']:<12}{r['bytes']:>10}{r['tokens']:>10}{r['hf_mb_s']:>10.2f}{r['ours_mb_s']:>11.2f}{r['ours_mb_s'] / r['hf_mb_s']:>8.1f}")


def ids_differ(hf, text):
    """Whether the text spells an added token that hf would match (the ones that are not flagged special)."""
    return any(t.content in text for t in hf.get_added_tokens_decoder().values())


if __name__ == "__main__":
    main()
