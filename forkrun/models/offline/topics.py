"""What people ask about a project, in words to search for: one table.

Patterns are regular expressions that ripgrep and Python read alike; they ignore case.
"""

from __future__ import annotations

import msgspec


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One subject of questions.

    `words`: words of a prompt that mean it. `files`: where the answer stands, as a glob.
    `pattern`: what its lines look like. `everywhere`: sources are searched too, not only `files`.
    `heads_block`: the lines below one that matches and opens a list or a part belong to it.
    `names`: what can be the answer, each with the pattern that tells it; where a pattern has a
    group, what the group holds is the answer. `sentence`: `{what}` stands for the answer,
    `{where}` for the place that shows it.
    """

    words: str
    files: str
    pattern: str
    sentence: str
    names: dict[str, str] = {}
    everywhere: bool = False
    heads_block: bool = False


MANIFESTS = (
    "pyproject.toml,setup.cfg,setup.py,requirements*.txt,package.json,deno.json,Cargo.toml,go.mod,"
    "pom.xml,build.gradle,build.gradle.kts,Gemfile,composer.json,mix.exs,Package.swift,"
    "CMakeLists.txt,*.csproj,Makefile"
)
SETTINGS = f"**/{{{MANIFESTS}}}"
SOURCES = (
    "*.{py,js,ts,jsx,tsx,mjs,go,rs,java,kt,rb,php,cs,c,cc,cpp,h,swift,ex,sh,yml,yaml,toml,env}"
)


def _words(names: str) -> dict[str, str]:
    return {name: rf"\b{name}\b" for name in names.split()}


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
_LINTERS = _words(
    "ruff flake8 pylint black isort eslint prettier biome stylelint clippy rustfmt gofmt "
    "golangci-lint rubocop ktlint clang-format clang-tidy shellcheck pre-commit"
)
_TYPES = _words("mypy pyright pyre pytype typescript sorbet")
_BUILDERS = _words(
    "setuptools hatchling poetry-core flit_core maturin scikit-build-core pdm-backend uv_build "
    "vite webpack rollup esbuild parcel turbo cmake meson bazel gradle maven cargo tsc"
)
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
            "": r"^ *[\"']?(?:__)?version(?:__)?[\"']? *[:=] *[\"']([^\"']+)|^ *<version>([^<]+)"
            r"|^(\d+\.\d[\w.]*)$"
        },
        sentence="The version is {what} ({where}).",
    ),
    Topic(
        words="python node interpreter minimum runtime",
        files=f"**/{{{MANIFESTS},.python-version,.nvmrc,.node-version}}",
        pattern=r"(?i)requires-python|python_requires|\"node\" *:|rust-version|^go \d|"
        r"^v?\d+[\d.]*$",
        names={
            "": r"(?:requires-python|python_requires|\"node\"|rust-version) *[:=] *[\"']([^\"']+)"
            r"|^go (\d\S*)|^v?(\d+[\d.]*)$"
        },
        sentence="It requires {what} ({where}).",
    ),
    Topic(
        words="depend dependency library package requirement",
        files=SETTINGS,
        pattern=r"(?i)dependencies\]|dependencies[\"']? *[=:]|\[dependency-groups\]|"
        r"install_requires|^require\b|^[a-z0-9_.-]+ *[<>=~!]=|^ *(gem|implementation) ",
        heads_block=True,
        sentence="The dependencies are declared in {where}.",
    ),
    Topic(
        words="entry main command cli start executable binary launch",
        files=f"**/{{{MANIFESTS},__main__.py,main.*,cli.py,index.js}}",
        pattern=r"(?i)\[project\.scripts\]|console_scripts|\"(bin|main|start)\" *:|\[\[bin\]\]|"
        r"__main__|"
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
        pattern=r"(?i)^ *(-? *run|on|name|jobs|script|stages|image) *:|"
        r"^[\w./ -]*(test|check|lint|build)\b",
        sentence="Continuous integration is described in {where}.",
    ),
    Topic(
        words="port listen host bind server",
        files=f"**/{{{MANIFESTS},Dockerfile*,docker-compose*,compose.y*ml,.env*,*.yml,*.yaml}}",
        pattern=r"(?i)(\b|_)port\b[\"']?\)?(: *\w+)? *([:=,(]|\|\|) *[\"']?\d|\bEXPOSE +\d|"
        r"\.listen\(|--port\b|\blisten\w*\b.*:\d{2,5}",
        names={"": r"port\b(?:: *\w+)?\D{0,24}?(\d{2,5})\b|(?:EXPOSE +|\.listen\( *|:)(\d{2,5})\b"},
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
        pattern=r"(?i)^ *[\"']?description[\"']? *[:=]|^# [^.]*$",
        names={"": r"^ *[\"']?description[\"']? *[:=] *[\"']([^\"]+)[\"']"},
        heads_block=True,
        sentence="It says of itself: {what} ({where})",
    ),
)
