"""Renders chat templates with Jinja2 for the coordinator, one request after the other, until its pipe closes.

A template comes from a model file: it is an untrusted program. It runs in Jinja2's sandbox, and this process has hard
limits on memory and processor time; the coordinator adds a deadline by the clock and kills what breaks it.

Frames on stdin and stdout, integers little-endian:
  request  u32 length of the rest, i64 what strftime_now takes for now (seconds since 1970; 0: the clock), u32 length of
           the template, the template, the variables as a JSON object (both UTF-8)
  reply    u32 length of the rest, one status byte, UTF-8 text
Statuses: H ready (the text is Jinja2's version), T the rendered text, R the template refused (raise_exception), E the
template failed, L a limit was reached (this process should be replaced), X this process cannot start.

The environment is the one that transformers gives chat templates; beyond it, lists may be changed in place (append,
clear, extend, insert, pop), which several published templates do.
"""

import collections
import datetime
import json
import resource
import struct
import sys

try:
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox
except ImportError as error:
    jinja2 = None
    missing = f"{sys.executable} has no jinja2 ({error}); on Debian: apt-get install python3-jinja2"

REQUEST_HEADER = struct.Struct("<qI")
TEMPLATES_KEPT = 8
MAX_INTEGER_BITS = 4096
LIST_METHODS = frozenset(["append", "clear", "extend", "insert", "pop"])
# Not in the sandbox's list of methods that change a list before Jinja2 3.1.5.
DICT_METHODS = frozenset(["clear", "pop", "popitem", "setdefault", "update"])


class LimitReached(Exception):
    pass


def write_frame(status, text):
    payload = text.encode("utf-8", "replace")
    sys.stdout.buffer.write(struct.pack("<IB", len(payload) + 1, ord(status)) + payload)
    sys.stdout.buffer.flush()


def read_exactly(n_bytes):
    data = sys.stdin.buffer.read(n_bytes)
    if len(data) < n_bytes:
        sys.exit(0)
    return data


def read_request():
    (length,) = struct.unpack("<I", read_exactly(4))
    body = read_exactly(length)
    now_s, template_bytes = REQUEST_HEADER.unpack_from(body)
    context_at = REQUEST_HEADER.size + template_bytes
    return now_s, body[REQUEST_HEADER.size : context_at].decode(), body[context_at:].decode()


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    # Not Jinja2's own filter, which escapes for HTML and sorts keys.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def make_environment(max_output_bytes):
    class Refusal(jinja2.TemplateError):
        pass

    class GenerationTag(jinja2.ext.Extension):
        """{% generation %}...{% endgeneration %} marks what an assistant wrote; rendering leaves its body as it is."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_render_body"), [], [], body).set_lineno(line)

        def _render_body(self, caller):
            return caller()

    class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
        # Interception also keeps these out of constant folding, so that a bomb goes off under the limits.
        intercepted_binops = frozenset(["*", "**", "%"])

        def call_binop(self, context, operator, left, right):
            if operator == "*":
                check_product(left, right)
            elif operator == "**":
                check_power(left, right)
            return super().call_binop(context, operator, left, right)

        def is_safe_attribute(self, obj, attr, value):
            if isinstance(obj, list) and attr in LIST_METHODS:
                return True
            if isinstance(obj, dict) and attr in DICT_METHODS:
                return False
            return super().is_safe_attribute(obj, attr, value)

    def check_product(left, right):
        for text, count in ((left, right), (right, left)):
            if isinstance(text, (str, bytes, list, tuple)) and isinstance(count, int):
                if count > 0 and len(text) * count > max_output_bytes:
                    raise LimitReached("a repeated string or list is too long")
        if isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > MAX_INTEGER_BITS:
                raise LimitReached("a product is too large")

    def check_power(left, right):
        if isinstance(left, int) and isinstance(right, int) and right > 0:
            if left.bit_length() * right > MAX_INTEGER_BITS:
                raise LimitReached("a power is too large")

    def raise_exception(message):
        raise Refusal(message)

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    return environment, Refusal


def line_of(error):
    """The template's line that an error came from, as " (line N of the template)", or nothing."""
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in ("<template>", "<unknown>"):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" (line {line} of the template)" if line else ""


class Renderer:
    def __init__(self, max_output_bytes):
        self.max_output_bytes = max_output_bytes
        self.environment, self.refusal = make_environment(max_output_bytes)
        self.environment.globals["strftime_now"] = self.strftime_now
        self.templates = collections.OrderedDict()
        self.now_s = 0

    def strftime_now(self, text_format):
        now = datetime.datetime.fromtimestamp(self.now_s) if self.now_s else datetime.datetime.now()
        return now.strftime(text_format)

    def template_of(self, source):
        template = self.templates.get(source)
        if template is None:
            template = self.environment.from_string(source)
            self.templates[source] = template
            if len(self.templates) > TEMPLATES_KEPT:
                self.templates.popitem(last=False)
        self.templates.move_to_end(source)
        return template

    def render(self, source, variables):
        parts = []
        n_characters = 0
        for part in self.template_of(source).generate(variables):
            parts.append(part)
            n_characters += len(part)
            if n_characters > self.max_output_bytes:
                raise LimitReached("the rendered text is too long")
        text = "".join(parts)
        if len(text.encode("utf-8", "replace")) > self.max_output_bytes:
            raise LimitReached("the rendered text is too long")
        return text

    def answer(self, now_s, source, variables_json):
        """Status and text of the reply."""
        self.now_s = now_s
        try:
            return "T", self.render(source, json.loads(variables_json))
        except self.refusal as error:
            return "R", str(error)
        except LimitReached as error:
            return "L", str(error)
        except MemoryError:
            return "L", "it needs too much memory"
        except Exception as error:  # whatever a template can raise is its own error
            return "E", f"{type(error).__name__}: {error}{line_of(error)}"


def main():
    memory_bytes, cpu_s, max_output_bytes = (int(argument) for argument in sys.argv[1:4])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if jinja2 is None:
        write_frame("X", missing)
        return
    renderer = Renderer(max_output_bytes)
    write_frame("H", jinja2.__version__)
    while True:
        now_s, source, variables_json = read_request()
        used = resource.getrusage(resource.RUSAGE_SELF)
        used_s = int(used.ru_utime + used.ru_stime)
        hard_limit = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (used_s + cpu_s + 1, hard_limit))
        status, text = renderer.answer(now_s, source, variables_json)
        write_frame(status, text)


if __name__ == "__main__":
    main()
