"""What people ask about a project, in words to search for: one table.

Patterns are regular expressions that ripgrep and Python read alike; they ignore case.
"""

from __future__ import annotations

import re

import msgspec


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One subject of questions.

    `words`: words of a prompt that mean it. `files`: where the answer stands, as a
    glob. `pattern`: what its lines look like. `everywhere`: sources are searched too, not only
    `files`. `names`: what can be the answer, each with the pattern that tells it; where a pattern
    has a group, what the group holds is the answer. `sentence`: `{what}` stands for the answer,
    `{where}` for the place that shows it.
    """

    words: str
    files: str
    pattern: str
    sentence: str
    names: dict[str, str] = {}
    everywhere: bool = False


MANIFESTS = (
    "pyproject.toml,setup.cfg,setup.py,requirements*.txt,package.json,deno.json,Cargo.toml,go.mod,"
    "pom.xml,build.gradle,build.gradle.kts,Gemfile,composer.json,mix.exs,Package.swift,"
    "CMakeLists.txt,*.csproj,Makefile"
)
SETTINGS = f"**/{{{MANIFESTS}}}"
SOURCES = (
    "*.{py,js,ts,jsx,tsx,mjs,go,rs,java,kt,rb,php,cs,c,cc,cpp,h,swift,ex,sh,yml,yaml,toml,env}"
)


def _any(names: dict[str, str]) -> str:
    return "(?i)" + "|".join(names.values())


_TESTING = {
    "pytest": r"\bpytest\b",
    "unittest": r"\bimport unittest\b|\bunittest\.TestCase\b|-m unittest\b",
    "nose2": r"\bnose2\b",
    "hypothesis": r"\bhypothesis\b",
    "tox": r"\[tox\]|\btox\b *[>=\"'-]",
    "nox": r"\bnox\b",
    "jest": r"\bjest\b",
    "vitest": r"\bvitest\b",
    "mocha": r"\bmocha\b",
    "ava": r"\"ava\"|\bava\b *--",
    "playwright": r"\bplaywright\b",
    "cypress": r"\bcypress\b",
    "node's own test runner": r"\bnode:test\b|\bnode --test\b",
    "cargo's own test harness": r"#\[test\]|#\[cfg\(test\)\]|\bcargo test\b",
    "Go's testing package": r"\*testing\.T\b|\bgo test\b",
    "JUnit": r"\bjunit\b",
    "RSpec": r"\brspec\b",
    "minitest": r"\bminitest\b",
    "PHPUnit": r"\bphpunit\b",
    "GoogleTest": r"\bgtest\b|\bgoogletest\b",
    "Catch2": r"\bcatch2\b",
}
_LICENSES = {
    "Apache-2.0": r"\bapache(-| license,? *(version )?)2\.0\b|\bApache License\b",
    "MIT": r"\bMIT\b",
    "BSD-3-Clause": r"\bBSD[- ]3\b",
    "BSD-2-Clause": r"\bBSD[- ]2\b",
    "AGPL-3.0": r"\bAGPL\b|\bGNU AFFERO\b",
    "LGPL": r"\bLGPL\b|\bGNU LESSER\b",
    "GPL": r"\bGPL-|\bGNU GENERAL PUBLIC\b",
    "MPL-2.0": r"\bMPL-|\bMozilla Public\b",
    "ISC": r"\bISC\b",
    "Unlicense": r"\bunlicense\b",
}
_LINTERS = {
    name: rf"\b{name}\b"
    for name in (
        "ruff flake8 pylint black isort eslint prettier biome stylelint clippy rustfmt gofmt "
        "golangci-lint rubocop ktlint clang-format clang-tidy shellcheck pre-commit"
    ).split()
}
_TYPES = {name: rf"\b{name}\b" for name in "mypy pyright pyre pytype typescript sorbet".split()}
_BUILDERS = {
    name: rf"\b{name}\b"
    for name in (
        "setuptools hatchling poetry-core flit_core maturin scikit-build-core pdm-backend uv_build "
        "vite webpack rollup esbuild parcel turbo cmake meson bazel gradle maven cargo tsc"
    ).split()
}
_DATABASES = {
    "PostgreSQL": r"\bpostgres\w*|\bpsycopg\w*|\basyncpg\b",
    "SQLite": r"\b\w*sqlite\w*",
    "MySQL": r"\bmysql\w*|\bmariadb\b",
    "MongoDB": r"\bmongo\w*",
    "Redis": r"\bredis\b",
    "SQLAlchemy": r"\bsqlalchemy\b",
    "Prisma": r"\bprisma\b",
    "DynamoDB": r"\bdynamodb\b",
    "Elasticsearch": r"\belasticsearch\b",
}
_FRAMEWORKS = {
    "FastAPI": r"\bfastapi\b",
    "Django": r"\bdjango\b",
    "Flask": r"\bflask\b",
    "Starlette": r"\bstarlette\b",
    "aiohttp": r"\baiohttp\b",
    "Express": r"\"express\"|'express'",
    "Next.js": r"\"next\"",
    "React": r"\"react\"",
    "Vue": r"\"vue\"",
    "Svelte": r"\"svelte\"",
    "Rails": r"\brails\b",
    "Laravel": r"\blaravel\b",
    "Spring": r"\bspringframework\b|\bspring-boot\b",
    "axum": r"\baxum\b",
    "actix-web": r"\bactix-web\b",
    "Gin": r"\bgin-gonic\b",
}

TOPICS = (
    Topic(
        words="test pytest unittest coverage",
        files=f"**/{{{MANIFESTS},pytest.ini,tox.ini,noxfile.py,jest.config.*,vitest.config.*,test_*.py,"
        "*_test.go,*.test.*,*.spec.*,lib.rs}",
        pattern=_any(_TESTING),
        names=_TESTING,
        sentence="This project tests with {what}, as {where} shows.",
        everywhere=True,
    ),
    Topic(
        words="license licence copyright",
        files=f"**/{{LICENSE*,LICENCE*,COPYING*,{MANIFESTS}}}",
        pattern=r"(?i)\blicen[sc]e\b|" + "|".join(_LICENSES.values()),
        names=_LICENSES,
        sentence="The license is {what} ({where}).",
    ),
    Topic(
        words="version release",
        files=f"**/{{{MANIFESTS},__init__.py,_version.py,VERSION}}",
        pattern=r"(?i)^ *[\"']?(__)?version(__)?[\"']? *[:=]|^ *<version>|^\d+\.\d+",
        names={
            "": r"^ *[\"']?(?:__)?version(?:__)?[\"']? *[:=] *[\"']([^\"']+)|^ *<version>([^<]+)|^(\d+\.\d[\w.]*)$"
        },
        sentence="The version is {what} ({where}).",
    ),
    Topic(
        words="python node interpreter minimum runtime",
        files=f"**/{{{MANIFESTS},.python-version,.nvmrc,.node-version}}",
        pattern=r"(?i)requires-python|python_requires|\"node\" *:|rust-version|^go \d|^v?\d+[\d.]*$",
        names={
            "": r"(?:requires-python|python_requires|\"node\"|rust-version) *[:=] *[\"']([^\"']+)|^go (\d\S*)"
        },
        sentence="It requires {what} ({where}).",
    ),
    Topic(
        words="depend dependency library package requirement",
        files=SETTINGS,
        pattern=r"(?i)dependenc|install_requires|^require\b|^ *[\"'][a-z0-9@/_.-]+[\"']? *([:,]|[<>=~^]=?)",
        sentence="The dependencies are declared in {where}.",
    ),
    Topic(
        words="entry main command cli start executable binary launch",
        files=f"**/{{{MANIFESTS},__main__.py,main.*,cli.py,index.js}}",
        pattern=r"(?i)\[project\.scripts\]|console_scripts|\"(bin|main|start)\" *:|\[\[bin\]\]|__main__|"
        r"\bfn main\(|\bfunc main\(|\bdef main\(|^\w[\w-]* *= *\"[\w.]+:\w+\"",
        names={"": r"^(\w[\w-]* *= *\"[\w.]+:\w+\")|\"(?:bin|main|start)\" *: *(\"[^\"]+\")"},
        sentence="It is started by {what} ({where}).",
    ),
    Topic(
        words="build compile bundle package",
        files=SETTINGS,
        pattern=_any(_BUILDERS) + r"|build-backend|\"build\" *:",
        names=_BUILDERS,
        sentence="It is built with {what} ({where}).",
    ),
    Topic(
        words="lint format formatter linter style",
        files=f"**/{{{MANIFESTS},.pre-commit-config.yaml,.eslintrc*,.prettierrc*,ruff.toml,.flake8,rustfmt.toml}}",
        pattern=_any(_LINTERS),
        names=_LINTERS,
        sentence="Lint and format are the work of {what} ({where}).",
    ),
    Topic(
        words="type typecheck typing",
        files=f"**/{{{MANIFESTS},mypy.ini,pyrightconfig.json,tsconfig*.json}}",
        pattern=_any(_TYPES) + r"|\"strict\" *:|^strict\b",
        names=_TYPES,
        sentence="Types are checked with {what} ({where}).",
    ),
    Topic(
        words="ci pipeline workflow continuous action",
        files="**/{.github/workflows/*,.gitlab-ci.yml,.circleci/config.yml,Jenkinsfile,azure-pipelines.yml,"
        ".travis.yml,.ci/*}",
        pattern=r"(?i)^ *(-? *run|on|name|jobs|script|stages|image) *:|^[\w./ -]*(test|check|lint|build)\b",
        sentence="Continuous integration is described in {where}.",
    ),
    Topic(
        words="port listen host bind server",
        files=f"**/{{{MANIFESTS},Dockerfile*,docker-compose*,compose.y*ml,.env*,*.yml,*.yaml}}",
        pattern=r"(?i)\bport\b[\"']?\)? *([:=,(]|\|\|) *[\"']?\d|\bEXPOSE +\d|\.listen\(|--port\b|\blisten\w*\b.*:\d{2,5}",
        names={"": r"(?i:port\b\D{0,24}?|EXPOSE +|\.listen\( *|--port[ =]+|:)(\d{2,5})\b"},
        sentence="The port is {what} ({where}).",
        everywhere=True,
    ),
    Topic(
        words="database sql db storage orm persistence",
        files=f"**/{{{MANIFESTS},docker-compose*,compose.y*ml,.env*,schema.prisma}}",
        pattern=_any(_DATABASES),
        names=_DATABASES,
        sentence="It keeps its data with {what} ({where}).",
        everywhere=True,
    ),
    Topic(
        words="web http api backend frontend ui",
        files=SETTINGS,
        pattern=_any(_FRAMEWORKS),
        names=_FRAMEWORKS,
        sentence="It is built on {what} ({where}).",
    ),
    Topic(
        words="docker container image deploy deployment",
        files="**/{Dockerfile*,Containerfile,docker-compose*,compose.y*ml,fly.toml,Procfile,*.tf}",
        pattern=r"(?i)^ *(FROM|CMD|ENTRYPOINT|EXPOSE|image:|build:|web:|app *=)",
        names={"": r"^ *FROM +(\S+)|^ *image: *(\S+)"},
        sentence="The container image is made from {what} ({where}).",
    ),
    Topic(
        words="configure configuration config setting environment variable env",
        files="**/{.env*,*.toml,*.ini,*.cfg,config.*,settings.*}",
        pattern=r"os\.environ|getenv|process\.env|env::var|os\.Getenv|ENV\[",
        sentence="Settings are read in {where}.",
        everywhere=True,
    ),
    Topic(
        words="project about purpose description overview readme repository repo",
        files=f"**/{{README*,{MANIFESTS}}}",
        pattern=r"(?i)^ *[\"']?description[\"']? *[:=]|^# \S",
        names={"": r"^ *[\"']?description[\"']? *[:=] *[\"']([^\"]+)[\"']"},
        sentence="It says of itself: {what} ({where})",
    ),
)

STOP_WORDS = frozenset(
    """a about all also am an and any are as at be been being but by can could did do doe done each
    either every find for from get give had ha have he her here him hi how i if in into is it its
    just know let like list look make many may me might more most much my name need no not of on one
    or other our out over please read say see shall she should show so some such tell than that the
    their them then there these they thi this those to too us use used using very want wa we were
    what when where which while who whom whose why will with work would you your codebase code repo
    repository project file explain describ summar summari answer question""".split()
)


def stem(word: str) -> str:
    """Take the endings off an English word, so that what belongs together becomes the same."""
    word = word.lower()
    for ending, instead in (
        ("ies", "y"),
        ("ing", ""),
        ("ed", ""),
        ("es", ""),
        ("s", ""),
        ("e", ""),
    ):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            return word[: -len(ending)] + instead
    return word


def words_of(text: str) -> list[str]:
    """Give the words of a text that are worth searching for, each once, in their order."""
    found = re.findall(r"[A-Za-z][A-Za-z0-9_]*(?:[-.][A-Za-z0-9_]+)*", text)
    worth = [w for w in found if stem(w) not in STOP_WORDS and w.lower() not in STOP_WORDS]
    return list(dict.fromkeys(w for w in worth if len(w) > 1))


def topics_of(text: str) -> list[Topic]:
    """Give the topics that a question is about, the nearest first, at most two."""
    stems = [stem(word) for word in re.findall(r"[A-Za-z]+", text)]
    scored = []
    for topic in TOPICS:
        hits = sum(stems.count(stem(word)) for word in topic.words.split())
        if hits:
            scored.append((hits, topic))
    if len(scored) > 1 and "about" not in stems:
        scored = [pair for pair in scored if pair[1] is not TOPICS[-1]] or scored
    scored.sort(key=lambda pair: -pair[0])
    return [topic for _, topic in scored[:2]]
