"""A Debian guest with services that nobody here wrote: PostgreSQL, Redis, nginx and Tomcat (Java).

They come from Debian's packages. The database and the files that nginx serves are made with the
image. No service starts at boot: a scenario writes its sizes first.
"""

import gzip
import json
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

from .binaries import build
from .debian import LAB, DebianGuest, Variant
from .guest import MGLRU_SWITCH, MIB, GuestError, Process
from .paths import GUEST as SCRIPTS

POSTGRESQL = "15"
"""Debian 12's release of PostgreSQL."""

PACKAGES = (
    *(f"postgresql-{POSTGRESQL}", "redis-server", "nginx-light"),
    *("openjdk-17-jre-headless", "tomcat10", "python3"),
)

SCALE = 20
"""The size of pgbench's database. Each unit has 100,000 accounts: 15 MB, and 2 MB of index."""

FILES = 200
"""The files that nginx serves: /0 to /199."""

FILE_KIB = 64

CLUSTER = f"{POSTGRESQL}/main"

# The programs of a build share the network of this machine, so the database listens on a socket in
# a directory of its own.
FILL = f"""
chroot "$1" runuser -u postgres -- sh -e <<'END'
bin=/usr/lib/postgresql/{POSTGRESQL}/bin
export PGHOST=/tmp
$bin/pg_ctl --wait --silent --log /tmp/log --pgdata /var/lib/postgresql/{CLUSTER} \\
    --options "-c config_file=/etc/postgresql/{CLUSTER}/postgresql.conf -c listen_addresses= -k /tmp" start
createdb bench
psql --quiet --command "create extension pg_prewarm" bench
$bin/pgbench --quiet --initialize --scale {SCALE} bench
psql --quiet --command checkpoint bench
$bin/pg_ctl --wait --silent --pgdata /var/lib/postgresql/{CLUSTER} stop
END
"""

SERVE = f"""
cd "$1/var/www/html"
for number in $(seq 0 {FILES - 1}); do head -c {FILE_KIB}K /dev/urandom > $number; done
"""

UNITS = (f"postgresql@{POSTGRESQL}-main", "postgresql", "redis-server", "nginx", "tomcat10")

VARIANT = Variant(
    "debian-services",
    PACKAGES,
    mib=2048,
    hooks=(FILL, SERVE, f'chroot "$1" systemctl --quiet disable {" ".join(UNITS[1:])}'),
)

HERE = "/run/clients"
"""The files of the clients."""

TOMCAT_LOG = "/var/log/tomcat10"

GROUPS = {
    "pg": f"system.slice/system-postgresql.slice/postgresql@{POSTGRESQL}-main.service",
    "redis": "system.slice/redis-server.service",
    "java": "system.slice/tomcat10.service",
    "nginx": "system.slice/nginx.service",
}
"""The groups of the services."""

CLIENTS = "clients"
"""The group of the clients. They stand for other machines."""

OMR = "system.slice/omr.service"

BLOCK = 8192
"""Bytes of a page of PostgreSQL."""

ROWS = 61
"""Accounts in such a page."""

VALUE = 2000
"""Bytes of a value in Redis. It takes 2 KiB."""


@dataclass(frozen=True)
class Sizes:
    """The data of the services: a part in use and a part that nobody uses, in MiB."""

    pg: int
    """Accounts in PostgreSQL's buffers that no query reads."""
    redis: int
    """Values in Redis that no request reads."""
    java: int
    """The part of Java's heap that Java has touched and does not use."""
    hot: int
    """The part in use of PostgreSQL and of Redis, for each."""

    def __post_init__(self) -> None:
        most = SCALE * 100_000 // ROWS * BLOCK // MIB
        if self.pg + self.hot > most:
            raise SystemExit(f"PostgreSQL has {most} MiB of accounts, not {self.pg + self.hot}")

    @property
    def unused(self) -> dict[str, int]:
        """The memory in bytes that nobody uses, for each service."""
        return {"pg": self.pg * MIB, "redis": self.redis * MIB, "java": self.java * MIB, "nginx": 0}

    @property
    def accounts(self) -> int:
        return self.hot * MIB // BLOCK * ROWS

    @property
    def keys(self) -> int:
        return self.hot * MIB // 2048


class Services:
    """The running services in a guest."""

    def __init__(self, guest: DebianGuest, sizes: Sizes) -> None:
        self.guest = guest
        self.sizes = sizes
        guest.group(CLIENTS)
        guest.shell(f"mkdir -p {HERE} && chmod 777 {HERE}")
        query = f"\\set aid random(1, {sizes.accounts})\nSELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
        guest.write(f"{HERE}/query.sql", query, create=True)
        self.configure()
        units = [f"postgresql@{POSTGRESQL}-main", "redis-server", "nginx", "tomcat10"]
        guest.run(["systemctl", "start", *units], timeout=300)
        self.fill()

    def configure(self) -> None:
        # Free space beside the data, for PostgreSQL's catalogues.
        buffers = self.sizes.pg + 2 * self.sizes.hot + 32
        # Java uses a quarter of the heap or less. AlwaysPreTouch is what databases in Java ask for.
        heap = self.sizes.java * 4 // 3
        java = f"-Xms{heap}m -Xmx{heap}m -XX:+UseSerialGC -XX:+AlwaysPreTouch -XX:TieredStopAtLevel=1"
        for path, text in {
            f"/etc/postgresql/{CLUSTER}/conf.d/lab.conf": f"shared_buffers = {buffers}MB\n",
            "/etc/default/tomcat10": f'JAVA_OPTS="-Djava.awt.headless=true {java}"\n',
        }.items():
            self.guest.write(path, text, create=True)
        self.guest.shell("echo enable-debug-command yes >> /etc/redis/redis.conf")

    def fill(self) -> None:
        """Loads the data, as after the start of a service that was used once."""
        hot, cold = (mib * MIB // BLOCK for mib in (self.sizes.hot, self.sizes.pg))
        warm = f"select pg_prewarm('pgbench_accounts', 'buffer', 'main', {hot}, {hot + cold - 1})"
        self.guest.run(["runuser", "-u", "postgres", "--", "psql", "-c", warm, "bench"], timeout=300)
        keys = self.sizes.keys + self.sizes.redis * MIB // 2048
        self.guest.wait_for(
            lambda: self.guest.run(["redis-cli", "ping"], check=False).stdout.strip() == "PONG", 60, "Redis"
        )
        self.guest.run(["redis-cli", "debug", "populate", str(keys), "key", str(VALUE)], timeout=300)
        self.guest.wait_for(
            lambda: "started" in self.guest.shell(f"grep -rhs 'Server startup' {TOMCAT_LOG} && echo started || :"),
            300,
            "Tomcat",
        )

    def watch(self, every_s: float) -> Process:
        """Records memory and counters until it is killed."""
        return self.client("watch", f"{HERE}/watched", f"{every_s:g}", *GROUPS.values(), CLIENTS, OMR)

    def watched(self) -> list[dict[str, Any]]:
        lines = compressed(self.guest, f"{HERE}/watched").splitlines()
        return [json.loads(line) for line in lines]

    def ask(self, name: str, seconds: float, load: "Load") -> "Answers":
        """Asks the services and returns the times of all requests. The lab asks the guest for
        nothing meanwhile.
        """
        redis = (f"{load.redis:g}", str(self.sizes.keys))
        asking = self.client(
            *("ask", f"{HERE}/{name}", f"{seconds:g}", str(load.connections), *redis),
            *(f"{load.nginx:g}", str(FILES)),
        )
        bench = ["pgbench", "--no-vacuum", "--protocol=prepared", f"--rate={load.pg:g}", f"--time={seconds:.0f}"]
        bench += [f"--client={load.connections}", "--log", f"--log-prefix={HERE}/{name}-pg", f"--file={HERE}/query.sql"]
        querying = self.guest.spawn(["runuser", "-u", "postgres", "--", *bench, "bench"], group=CLIENTS)
        for process in (asking, querying):
            ended = process.wait(timeout=seconds + 300)
            if ended.code != 0:
                raise GuestError(f"a client ended with {ended.code or ended.signal}: {ended.stderr}")
        self.guest.shell(f"cat {HERE}/{name}-pg.* > {HERE}/{name}-queries")
        asked = json.loads(compressed(self.guest, f"{HERE}/{name}"))
        queries = [line.split() for line in compressed(self.guest, f"{HERE}/{name}-queries").splitlines()]
        # Client, number, microseconds from the time that was planned, script, end of the query.
        offset = self.guest.monotonic_ns() / 1e9 - float(self.guest.shell("date +%s.%N"))
        pg = [
            (int(words[4]) + int(words[5]) / 1e6 + offset - int(words[2]) / 1e6, int(words[2]) / 1000)
            for words in queries
        ]
        times = asked["times"] | {"pg": sorted((round(due, 3), ms) for due, ms in pg)}
        return {"times": times, "failed": asked["failed"]}

    def client(self, *words: str) -> Process:
        return self.guest.spawn(["python3", f"{LAB}/clients.py", *words], group=CLIENTS)


class Load(NamedTuple):
    """Requests per second, and the connections to PostgreSQL and Redis, each."""

    pg: float
    redis: float
    nginx: float
    connections: int

    def times(self, factor: int) -> "Load":
        """So many times as many requests and connections."""
        return Load(self.pg * factor, self.redis * factor, self.nginx * factor, self.connections * factor)


Times = list[tuple[float, float]]
"""The monotonic time in seconds at which each request was due, and its milliseconds."""


class Answers(TypedDict):
    times: dict[str, Times]
    """The requests to each service."""
    failed: int


def compressed(guest: DebianGuest, path: str) -> str:
    """The contents of a long file, which is compressed on its way."""
    guest.shell(f"gzip -c {path} > /run/long.gz")
    return gzip.decompress(guest.read_long("/run/long.gz")).decode()


class ServerGuest(DebianGuest):
    """A guest with the services' packages and omr's programs."""

    def __init__(self, **options: Any) -> None:
        files = {name: build(name) for name in ("omr", "omr-daemon")} | {"clients.py": SCRIPTS / "clients.py"}
        super().__init__(variant=VARIANT, files=files, **options)

    def settle(self) -> None:
        super().settle()
        self.write(MGLRU_SWITCH, "y")

    def start_omr(self, config: str) -> "OmrService":
        """Starts omr's daemon with the default configuration and this one."""
        return OmrService(self, config)


class OmrService:
    """omr's daemon as a unit of systemd. A guest of the lab has no package of omr."""

    def __init__(self, guest: DebianGuest, config: str) -> None:
        self.guest = guest
        guest.shell("mkdir -p /etc/omr")
        guest.write("/etc/omr/omr.toml", config, create=True)
        directories = ("--property=StateDirectory=omr", "--property=RuntimeDirectory=omr")
        guest.run(["systemd-run", "--unit=omr", "--property=Type=notify", *directories, f"{LAB}/omr-daemon"])

    def ledger(self) -> list[dict[str, Any]]:
        """All entries of the ledger, oldest first."""
        text = compressed(self.guest, "/var/lib/omr/ledger.jsonl")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def log(self) -> list[str]:
        return self.guest.journal("omr").splitlines()[-300:]
