#!/usr/bin/env python3
"""Speed of recipe/ next to Hugging Face tokenizers, deepseek-recipe and llguidance: same inputs, same run, one thread each.

    pip install deepseek-recipe==0.2.0 tokenizers==0.23.3 llguidance==1.9.1
    bench/recipe/compare.py [--rounds 5] [--only tokenize,encode,parse,mask] [--text FILE ...] [--json] [--save]

tokenize  text to ids, MB/s. Files of this repository by kind, a Chinese passage, a run of letters without a break, --text FILE
encode    request body to prompt and ids, us a request: every recorded request that is answered (testdata/recipe/prompts.jsonl.gz)
parse     model output to the serialised events of the protocol, MB of output a second: the recorded streams (testdata/recipe/streams.jsonl.gz),
          which are short, and one long turn of one token a step. "compatible" does what deepseek-recipe does, "default" is what a server
          runs without --compat
mask      grammar to a bit for each of 129,280 ids, us a token, along a text

Before anything is timed, ids, prompts and bodies of both sides must be equal, and equal to the recording; masks must allow the text on both
sides. Sides take turns, and the fastest of --rounds counts: others may use the machine. The Go side is bench/recipe/main.go, built and run by this
script. The Python packages are timed through their own interface, so encode, parse and mask include one call from Python for each
request, step or token, a fraction of a microsecond. llguidance is optional.

--save writes the table and the JSON to bench/CPU/recipe.txt and recipe.json, named after the processor.
"""
import argparse, ctypes, glob, gzip, json, os, pathlib, platform, re, statistics, subprocess, sys, tempfile, time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = pathlib.Path(__file__).resolve().parents[2]
RELEASE = ROOT / "recipe/token/release"
LEAST = 0.1  # seconds that a round repeats its work for
WIDTH = 129280


def fail(message):
    sys.exit(f"compare.py: {message}")


try:
    import deepseek_recipe as dr
    import tokenizers
except ImportError as e:
    fail(f"{e}; pip install deepseek-recipe==0.2.0 tokenizers==0.23.3")
try:
    import llguidance
except ImportError:
    llguidance = None


def release_files():
    """The tokenizers that the reference adapter is used with, and the V4 one without added tokens."""
    doc = json.loads(gzip.decompress((RELEASE / "tokenizer-v4.json.gz").read_bytes()))
    over = json.loads((RELEASE / "overlay.json").read_text("utf-8"))
    added = {t["id"]: t for name in ("v4.1", "v4.1-recipe") for t in over[name]}
    v41 = {**doc, "added_tokens": sorted({**{t["id"]: t for t in doc["added_tokens"]}, **added}.values(), key=lambda t: t["id"])}
    return {"v4/recipe": json.dumps(doc), "v4.1/recipe": json.dumps(v41), "plain": json.dumps({**doc, "added_tokens": []})}


def recorded(name):
    with gzip.open(ROOT / "testdata/recipe" / name, "rt", encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


class Ours:
    """The Go program, one order a line."""

    def __init__(self, folder):
        program = os.path.join(folder, "recipe")
        subprocess.run(["go", "build", "-o", program, "./bench/recipe"], cwd=ROOT, check=True)
        self.p = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "GOMAXPROCS": "1"})

    def ask(self, op, **order):
        try:
            self.p.stdin.write((json.dumps({"op": op, **order}) + "\n").encode())
            self.p.stdin.flush()
        except BrokenPipeError:
            pass  # the program has said why
        line = self.p.stdout.readline()
        if not line:
            fail(f"the Go program ended at {op}, exit code {self.p.wait()}")
        return json.loads(line)

    def run(self, name=""):
        return self.ask("run", name=name, seconds=LEAST)["seconds"]

    def close(self):
        self.p.stdin.close()
        if self.p.wait() != 0:
            fail(f"the Go program ended with exit code {self.p.returncode}")


def timed(work):
    n, start = 0, time.perf_counter()
    while True:
        work()
        n += 1
        t = time.perf_counter() - start
        if t >= LEAST:
            return t / n


def race(rounds, sides):
    """The fastest seconds of each side; sides take turns."""
    best = {}
    for _ in range(rounds):
        for name, measure in sides.items():
            best[name] = min(best.get(name, float("inf")), measure())
    return best


# ---------------------------------------------------------------- tokenize

def texts(extra):
    def join(pattern, limit=300_000):
        out = ""
        for f in sorted(glob.glob(str(ROOT / pattern), recursive=True)):
            out += open(f, encoding="utf-8", errors="replace").read()
            if len(out) > limit:
                break
        return out[:limit]
    out = {"go": join("**/*.go"), "markdown": join("**/*.md"), "json": join("recipe/**/*.jsonl"),
           "chinese": "人工智能是计算机科学的一个分支，它企图了解智能的实质，并生产出一种新的能以人类智能相似的方式做出反应的智能机器。\n" * 1000,
           "letters": "abcdefgh" * 10_000}
    for f in extra:
        out[os.path.basename(f)] = open(f, encoding="utf-8", errors="replace", newline="").read()
    return {k: v for k, v in out.items() if v}


def tokenize(ours, files, a):
    # Without added tokens: neither side may match them, and the texts of this repository name them all over.
    hf, pkg = tokenizers.Tokenizer.from_str(files["plain"]), dr.Tokenizer.from_str(files["plain"])
    rows = []
    for kind, text in texts(a.text).items():
        ids = ours.ask("tokenize", text=text)["ids"]
        # encode_batch_fast leaves out offsets, which the others do not give either.
        if not ids == hf.encode_batch_fast([text], add_special_tokens=False)[0].ids == pkg.encode(text):
            fail(f"tokenize {kind}: ids differ")
        t = race(a.rounds, {"ours": ours.run, "hf": lambda: timed(lambda: hf.encode_batch_fast([text], add_special_tokens=False)[0].ids),
                            "recipe": lambda: timed(lambda: pkg.encode(text))})
        size = len(text.encode())
        rows.append({"text": kind, "bytes": size, "tokens": len(ids), **{f"{k}_mb_s": size / v / 1e6 for k, v in t.items()}})
    return rows


# ---------------------------------------------------------------- requests

REQUESTS = {"chat": dr.ChatCompletionRequest, "responses": dr.ResponsesRequest, "messages": dr.MessagesRequest}
BODIES = {"chat": dr.ChatCompletionResponse, "responses": dr.ResponsesResponse, "messages": dr.MessagesResponse}
ENUMS = {"reasoning_content_behavior": (dr.ReasoningContentBehavior, {"fill_empty": "FillEmpty", "reject": "Reject"}),
         "responses_web_search": (dr.WebSearchBehavior, {"drop": "Drop", "reject": "Reject"}),
         "messages_web_search": (dr.WebSearchBehavior, {"drop": "Drop", "reject": "Reject"})}


def body_of(case):
    q = case["request"]
    return q if isinstance(q, str) else json.dumps(q, ensure_ascii=False)


def options_of(case):
    o = dict(case.get("options") or {})
    aliases = o.pop("aliases", {})
    for key, (enum, names) in ENUMS.items():
        if key in o:
            o[key] = getattr(enum, names[o[key]])
    opts = dr.ConversionOptions(**o)
    for name, profile in aliases.items():
        opts = opts.with_model_alias(name, dr.ModelVersion.DeepseekV4Pro if profile == "v4/recipe" else dr.ModelVersion.DeepseekV41Flash)
    return opts


def order_of(case):
    """A recorded case as the Go program takes it: fields of protocol.Options and protocol.Header, chunks of one shape."""
    o, u, ready = case.get("options") or {}, case.get("prompt_usage") or {}, case.get("ready", True)
    web = o.get("responses_web_search") or o.get("messages_web_search")
    options = {"Compat": True, "ThinkingOff": o.get("default_thinking_mode") is False,
               "RequireReasoning": o.get("reasoning_content_behavior") == "reject", "WebSearch": {None: 0, "drop": 1, "reject": 2}[web],
               "ThinkingMaxTokens": o.get("thinking_max_tokens_upper_bound") or 0, "PlainMaxTokens": o.get("non_thinking_max_tokens_upper_bound") or 0}
    if "aliases" in o:
        options["Models"] = {name: {"Name": name, "V4": profile == "v4/recipe"} for name, profile in o["aliases"].items()}
    header = {"ID": "R", "Created": 1700000000, "Model": "M", "Fingerprint": case.get("system_fingerprint"),
              "Prompt": u.get("prompt_tokens", 0) if ready else 0, "Cached": u.get("prompt_cache_hit_tokens", 0) if ready else 0}

    def chunk(c):
        c = {"text": c, "n": 1} if isinstance(c, str) else {"tokens": c} if isinstance(c, list) else c
        if "tokens" not in c:
            return c
        return {"IDs": [i if i < 1 << 31 else -1 for i in c["tokens"]],
                "Logprobs": [{"Logprob": x, "Top": [{"ID": i, "Logprob": y} for i, y in top]} for x, top in c.get("logprobs") or []] or None}
    return {"id": case["id"], "api": case["api"], "body": body_of(case), "options": options, "header": header, "ready": ready,
            "signature": case.get("signature"), "chunks": [chunk(c) for c in case.get("chunks", [])], "finish": case.get("finish") or ""}


def encode(ours, files, a):
    cases = [c for c in recorded("prompts.jsonl.gz") if "error" not in c and c["api"] in REQUESTS]
    v4 = dr.DeepseekV4Encoding(), dr.DeepseekV4Encoding().with_tokenizer(dr.Tokenizer.from_str(files["v4/recipe"]))
    v41 = dr.DeepseekV41Encoding(), dr.DeepseekV41Encoding().with_tokenizer(dr.Tokenizer.from_str(files["v4.1/recipe"]))

    def encoder(r):
        return v4 if r.model_version == dr.ModelVersion.DeepseekV4Pro else v41
    rows = []
    for api in REQUESTS:
        some = [c for c in cases if c["api"] == api]
        work = [(REQUESTS[api], body_of(c), options_of(c)) for c in some]

        def theirs():
            for cls, body, opts in work:
                r = cls(body).convert(opts)
                encoder(r)[1].encode(r.conversation)
        got = ours.ask("encode", cases=[order_of(c) for c in some])
        for c, (cls, body, opts), prompt, ids in zip(some, work, got["prompts"], got["ids"], strict=True):
            r = cls(body).convert(opts)
            if not prompt == c["prompt"] == encoder(r)[0].render_conversation(r.conversation).prompt:
                fail(f"encode {c['id']}: prompts differ")
            if not ids == c["tokens"] == encoder(r)[1].encode(r.conversation):
                fail(f"encode {c['id']}: ids differ")
        t = race(a.rounds, {"ours": ours.run, "recipe": lambda: timed(theirs)})
        rows.append({"api": api, "requests": len(some), "tokens": sum(map(len, got["ids"])),
                     **{f"{k}_us": v / len(some) * 1e6 for k, v in t.items()}})
    return rows


# ---------------------------------------------------------------- output

FINISH = {"stop": dr.InferenceFinishReason.Stop, "length": dr.InferenceFinishReason.Length,
          "content_filter": dr.InferenceFinishReason.ContentFilter}


def chunk_of(c):
    if isinstance(c, str):
        return dr.InferenceChunk.text(c, 1)
    if isinstance(c, list):
        return dr.InferenceChunk.tokens(c)
    if "tokens" in c:
        lp = c.get("logprobs")
        return dr.InferenceChunk.tokens(c["tokens"], None if lp is None else [(x, [tuple(t) for t in top]) for x, top in lp])
    return dr.InferenceChunk.text(c["text"], c["n"])


def normal(body):
    """A body without what is random or the time."""
    text = json.dumps(body, ensure_ascii=False)
    text = re.sub(r"call_(\d+)_[A-Za-z0-9]{20,}", r"call_\1_R", text)
    return json.loads(re.sub(r'"(created|created_at|completed_at)": ?\d+', r'"\1": 1700000000', text))


class Stream:
    """A recorded output, ready to be pushed through the package."""

    def __init__(self, case, tok):
        self.case, self.tok, self.api = case, tok[case["profile"]], case["api"]
        opts, u = options_of(case), case.get("prompt_usage", {})
        q = REQUESTS[self.api](body_of(case))
        self.echo = q.echo() if self.api == "responses" else None
        self.names = q.namespace_tool_map(opts) if self.api == "responses" else None
        self.request = q.convert(opts)
        self.usage = u.get("prompt_tokens", 0), u.get("prompt_cache_hit_tokens", 0)
        self.chunks = [chunk_of(c) for c in case["chunks"]]
        if case.get("ready", True):
            self.chunks.insert(0, dr.InferenceChunk.ready(prompt_usage=dr.PromptUsage(
                prompt_tokens=self.usage[0], prompt_cache_hit_tokens=self.usage[1]), system_fingerprint=case.get("system_fingerprint")))
        self.end = dr.InferenceChunk.finish(FINISH[case["finish"]]) if case.get("finish") else None

    def run(self, take):
        g = REQUESTS[self.api].chunk_generator(self.request, "R", "M")
        if self.api == "responses":
            if self.names:
                g = g.with_namespace_tool_map(self.names)
            g = g.with_echo(self.echo)
        if "signature" in self.case:
            g = g.with_signature(self.case["signature"])
        p = dr.StreamProcessor(g, self.request.parsing_options, self.tok)
        for c in self.chunks:
            if p.finished:
                break
            for e in p.push(c):
                take(e)
        if self.end is not None and not p.finished:
            for e in p.push(self.end):
                take(e)
        for e in p.finish():
            take(e)

    def body(self):
        out = BODIES[self.api]("R", "M", 1700000000, *self.usage)
        self.run(out.accumulate)
        return normal(json.loads(out.to_json()))

    def serialise(self):
        self.run(lambda e: e.to_json())


def long_turn(files):
    """Reasoning, answer and a call with a large argument, one token a step, as an engine gives them."""
    # The files spell control tokens; here only the marks of the turn may be such.
    read = lambda name: (ROOT / name).read_text("utf-8")[:20_000].replace("\uff5c", "|").replace("think>", "think").replace("`", "'")
    mark = "\uff5cDSML\uff5c"
    text = (read("ARCHITECTURE.md") + "</think>" + read("docs/recipe.md") + f'\n\n<{mark} calls>\n<{mark} invoke name="write_file">\n'
            f'<{mark} parameter name="path" string="true">main.go</{mark} parameter>\n<{mark} parameter name="content" string="true">'
            + read("recipe/parse/parser.go") + f"</{mark} parameter>\n</{mark} invoke>\n</{mark} calls>")
    tool = {"type": "function", "function": {"name": "write_file", "parameters": {
        "type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}}}
    ids = tokenizers.Tokenizer.from_str(files["v4.1/recipe"]).encode(text, add_special_tokens=False).ids
    return {"id": "long turn", "api": "chat", "profile": "v4.1/recipe", "chunks": [[i] for i in ids], "finish": "stop", "request": {
        "model": "DeepSeek-V4.1-Flash", "stream": True, "tools": [tool], "messages": [{"role": "user", "content": "Write it"}]}}


def meaning(body):
    """What a Chat body says: reasoning, answer, and calls with their arguments as JSON."""
    m = body["choices"][0]["message"]
    return m["reasoning_content"], m["content"], [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in m["tool_calls"]]


def parse(ours, files, a):
    tok = {name: dr.Tokenizer.from_str(files[name]) for name in ("v4/recipe", "v4.1/recipe")}
    # A continued response needs a store of responses; the default refuses it without one.
    cases = [c for c in recorded("streams.jsonl.gz") if "previous_response_id" not in c["request"]]
    sets = {f"{api}, recorded": [c for c in cases if c["api"] == api] for api in REQUESTS}
    sets["chat, long turn"] = [long_turn(files)]
    rows = []
    for name, some in sets.items():
        streams = [Stream(c, tok) for c in some]
        plain = [order_of(c) for c in some]
        got, usual = ours.ask("parse", name="compatible", cases=plain), ours.ask("parse", name="default", default=True, cases=plain)
        for c, s, body in zip(some, streams, got["bodies"], strict=True):
            theirs = s.body()
            if not normal(body) == theirs == normal(c.get("body", theirs)):
                fail(f"parse {c['id']}: bodies differ\nours   {json.dumps(normal(body))[:2000]}\ntheirs {json.dumps(theirs)[:2000]}")
        # Recorded streams hold markup that the default reads differently; the long turn is well-formed.
        if len(some) == 1 and meaning(usual["bodies"][0]) != meaning(got["bodies"][0]):
            fail(f"parse {name}: the default reads a well-formed turn differently")
        t = race(a.rounds, {"ours": lambda: ours.run("compatible"), "default": lambda: ours.run("default"),
                            "recipe": lambda: timed(lambda: [s.serialise() for s in streams])})
        steps = sum(len(c["chunks"]) for c in some)
        rows.append({"streams": name, "count": len(some), "bytes": got["bytes"], "steps": steps, "written_bytes": got["written"],
                     **{f"{k}_mb_s": got["bytes"] / v / 1e6 for k, v in t.items()}, **{f"{k}_us_step": v / steps * 1e6 for k, v in t.items()}})
    return rows


# ---------------------------------------------------------------- masks

def grammars():
    trip = {"type": "object", "properties": {
        "city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "with": {"type": "array", "items": {"enum": ["wind", "rain", "uv"]}, "maxItems": 4}, "note": {"type": "string"}},
        "required": ["city", "unit", "days"], "additionalProperties": False}
    node = {"$defs": {"n": {"type": "object", "properties": {"name": {"type": "string"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
                            "required": ["name"], "additionalProperties": False}}, "$ref": "#/$defs/n"}
    wide = {"type": "object", "additionalProperties": False, "properties": {f"field_{i}": {"type": ["string", "null"]} for i in range(200)}}
    prose = "The traveller arrives late in the evening and would like to know whether the fog is gone by then. "
    return {
        "tool schema": ("schema", trip, json.dumps({"city": "San Francisco, California", "unit": "celsius", "days": 12, "with": ["wind", "uv"],
                                                    "note": prose * 2})),
        "recursive": ("schema", node, json.dumps({"name": "root", "kids": [{"name": "left", "kids": []}, {"name": "right", "kids": [{"name": prose}]}]})),
        "200 optional": ("schema", wide, json.dumps({"field_0": "some text here", "field_17": None, "field_199": prose})),
        "any object": ("object", {"type": "object"}, json.dumps({"title": "A short history", "year": 1817, "tags": ["a", None, True], "deep": {"x": {"y": [1, [2.5]]}},
                                                                 "text": prose * 2})),
        "regex": ("regex", r"(Yes|No), because [A-Za-z ,.']{10,300}\.", "Yes, because " + prose.strip()),
    }


def mask(ours, files, a):
    hf = tokenizers.Tokenizer.from_str(files["plain"])
    tok = None if llguidance is None else llguidance.LLTokenizer(files["v4/recipe"], n_vocab=WIDTH)
    bits = (ctypes.c_uint32 * (WIDTH // 32))()
    rows = []
    for name, (kind, spec, text) in grammars().items():
        ids = hf.encode(text, add_special_tokens=False).ids
        order = {"kind": kind, "schema": json.dumps(spec) if kind == "schema" else "", "pattern": spec if kind == "regex" else ""}
        passes = 4 * a.rounds
        got = ours.ask("mask", grammar=order, ids=ids, passes=passes)
        row = {"grammar": name, "tokens": len(ids), **{f"ours_{k}": got[k] for k in ("p50_us", "p99_us", "max_us", "compile_ms")}}
        if tok is not None:
            times, start = [], time.perf_counter()
            g = (llguidance.LLMatcher.grammar_from_regex(spec) if kind == "regex" else
                 llguidance.LLMatcher.grammar_from_json_schema(json.dumps(spec), defaults={
                     "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}))
            m = llguidance.LLMatcher(tok, g)
            compile_ms = (time.perf_counter() - start) * 1e3
            if m.is_error():
                fail(f"mask {name}: llguidance: {m.get_error()}")
            for _ in range(passes):
                m.reset()  # keeps what earlier walks have computed, as our grammar does
                for i, t in enumerate(ids):
                    start = time.perf_counter()
                    m.unsafe_compute_mask_ptr(ctypes.addressof(bits), WIDTH // 8)
                    times.append((time.perf_counter() - start) * 1e6)
                    if not bits[t >> 5] >> (t & 31) & 1 or not m.consume_token(t):
                        fail(f"mask {name}: llguidance forbids token {i}, id {t}")
                if not m.is_accepting():
                    fail(f"mask {name}: llguidance takes the text for unfinished")
            times.sort()
            at = lambda q: times[int(q * (len(times) - 1))]
            row |= {"llguidance_p50_us": at(0.5), "llguidance_p99_us": at(0.99), "llguidance_max_us": at(1), "llguidance_compile_ms": compile_ms}
        rows.append(row)
    return rows


# ---------------------------------------------------------------- report

def processor():
    try:
        for line in open("/proc/cpuinfo", encoding="utf-8"):
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def table(rows, columns):
    """Lines of a table; a column is a heading, a format and a function of the row (None prints a dash)."""
    cells = [[h for h, _, _ in columns]]
    for r in rows:
        cells.append([("-" if (v := f(r)) is None else format(v, spec)) for _, spec, f in columns])
    width = [max(map(len, c)) for c in zip(*cells)]
    return ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, width))).rstrip() for line in cells]


def report(result):
    col = lambda h, spec, key: (h, spec, lambda r: r.get(key))
    ratio = lambda h, top, bottom: (h, ".2f", lambda r: r[top] / r[bottom] if top in r and bottom in r else None)
    v = result["versions"]
    out = [f"{result['cpu']}, {result['cpus']} CPUs, load {result['load']}; {v['go']}; tokenizers {v['tokenizers']}, deepseek-recipe {v['deepseek-recipe']}, "
           f"llguidance {v['llguidance'] or 'not installed'}", f"one thread each, fastest of {result['rounds']} rounds, sides in turn; ratios over 1: ours is faster"]
    if "tokenize" in result:
        out += ["", "tokenize, MB/s"] + table(result["tokenize"], [col("text", "", "text"), col("bytes", "d", "bytes"), col("tokens", "d", "tokens"),
            col("ours", ".2f", "ours_mb_s"), col("HF", ".2f", "hf_mb_s"), col("deepseek-recipe", ".2f", "recipe_mb_s"),
            ratio("to HF", "ours_mb_s", "hf_mb_s"), ratio("to d-r", "ours_mb_s", "recipe_mb_s")])
    if "encode" in result:
        out += ["", "encode, us a request"] + table(result["encode"], [col("protocol", "", "api"), col("requests", "d", "requests"), col("tokens", "d", "tokens"),
            col("ours", ".1f", "ours_us"), col("deepseek-recipe", ".1f", "recipe_us"), ratio("ratio", "recipe_us", "ours_us")])
    if "parse" in result:
        out += ["", "parse, MB of output a second and us a step"] + table(result["parse"], [col("streams", "", "streams"), col("count", "d", "count"), col("bytes", "d", "bytes"),
            col("steps", "d", "steps"), col("compatible", ".2f", "ours_mb_s"), col("default", ".2f", "default_mb_s"), col("deepseek-recipe", ".2f", "recipe_mb_s"),
            *[col(f"{h} us", ".2f", f"{k}_us_step") for h, k in (("compatible", "ours"), ("default", "default"), ("d-r", "recipe"))],
            ratio("compatible to d-r", "ours_mb_s", "recipe_mb_s"), ratio("default to d-r", "default_mb_s", "recipe_mb_s")])
    if "mask" in result:
        out += ["", f"mask, us a token, {WIDTH} ids"] + table(result["mask"], [col("grammar", "", "grammar"), col("tokens", "d", "tokens"),
            *[col(f"{who} {h}", ".1f", f"{key}_{k}") for who, key in (("ours", "ours"), ("llg", "llguidance"))
              for h, k in (("p50", "p50_us"), ("p99", "p99_us"), ("max", "max_us"), ("compile ms", "compile_ms"))]])
    return "\n".join(out)


def main():
    parts = {"tokenize": tokenize, "encode": encode, "parse": parse, "mask": mask}
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--only", default=",".join(parts), help="which parts, separated by commas")
    ap.add_argument("--text", action="append", default=[])
    ap.add_argument("--json", action="store_true", help="print JSON, not the table")
    ap.add_argument("--save", action="store_true", help="also write bench/CPU/recipe.txt and recipe.json")
    a = ap.parse_args()
    names = a.only.split(",")
    if unknown := [n for n in names if n not in parts]:
        fail(f"--only {','.join(unknown)}: want some of {', '.join(parts)}")
    if a.rounds < 1:
        fail(f"--rounds {a.rounds}: want at least 1")
    go = subprocess.run(["go", "version"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()[2]
    result = {"cpu": processor(), "cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "rounds": a.rounds, "versions": {
        "go": go, "tokenizers": tokenizers.__version__, "deepseek-recipe": dr.__version__,
        "llguidance": llguidance.__version__ if llguidance else None}}
    files = release_files()
    with tempfile.TemporaryDirectory() as tmp:
        ours = Ours(tmp)
        for name in names:
            result[name] = parts[name](ours, files, a)
        ours.close()
    print(json.dumps(result, indent=1) if a.json else report(result))
    if a.save:
        folder = ROOT / "bench" / re.sub(r"[^a-z0-9]+", "-", result["cpu"].lower()).strip("-")
        folder.mkdir(exist_ok=True)
        (folder / "recipe.txt").write_text(report(result) + "\n", "utf-8")
        (folder / "recipe.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
