"""A private real OpenStack on this machine: keystone, placement, glance, neutron and nova, whose hypervisors are fake.

Servers are asked for, scheduled, counted against quotas, listed and deleted as anywhere; only nothing runs in them.
(`bodies.py` gives them something that does.) All of it listens on 127.0.0.1, with passwords of its own.
"""

import base64
import contextlib
import functools
import json
import os
import secrets
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

from cluster.guard import sessions, ticks
from cluster.private import ClusterError, PrivateCluster, free_ports, wait_for

PYTHON = "/usr/bin/python3"
"""Debian's own, which has the services."""
PROGRAMS = (
    *("keystone-manage", "placement-manage", "rabbitmqctl", "mariadbd", "mariadb-install-db", "uwsgi", "ip", "sshd"),
    *("ssh", "unshare", "nsenter"),
)
MODULES = ("keystone", "placement", "glance", "neutron", "nova", "pymysql")
NOVA_PROGRAMS = ("nova-manage", "nova-api", "nova-conductor", "nova-scheduler", "nova-compute")
MAINS = {
    "glance-manage": "glance.cmd.manage",
    "glance-api": "glance.cmd.api",
    "neutron-server": "neutron.cmd.eventlet.server",
    "neutron-db-manage": "neutron.db.migration.cli",
}
DATABASES = ("keystone", "glance", "placement", "neutron", "nova", "nova_api", "nova_cell0")
SERVICES = {"glance": "image", "placement": "placement", "neutron": "network", "nova": "compute"}
GIB = 1024
FLAVORS = {
    # name: cores, MiB of memory, GiB of disk
    "c1.small": (1, 2 * GIB, 10),
    "c2.medium": (2, 4 * GIB, 20),
    "c4.large": (4, 8 * GIB, 40),
    "m4.fat": (4, 32 * GIB, 40),
    "c8.huge": (8, 16 * GIB, 80),
    "g4.gpu": (4, 8 * GIB, 40),
    "v2.diskless": (2, 4 * GIB, 0),
}
SPECS = {"g4.gpu": {"resources:VGPU": "2"}}
IMAGES = ("debian-12", "no-python")
PATIENCE_S = 300
"""How long an answer may take: the machine may be very busy."""
ABORTING = "aborting"
"""The host on which every server fails (nova's own FakeBuildAbortDriver); off until a test turns it on."""

KEYSTONE = """\
[DEFAULT]
log_file = {dir}/log/keystone.log
[database]
connection = {db}/keystone
max_pool_size = 5
[token]
provider = fernet
expiration = {token_s}
[fernet_tokens]
key_repository = {dir}/keys/fernet
[fernet_receipts]
key_repository = {dir}/keys/fernet
[credential]
key_repository = {dir}/keys/credential
[identity]
# One round: what is checked here protects nothing, and is checked often.
password_hash_algorithm = bcrypt
password_hash_rounds = 4
[cache]
enabled = true
backend = oslo_cache.dict
"""
AUTH = """\
[keystone_authtoken]
www_authenticate_uri = {keystone}
auth_url = {keystone}
auth_type = password
username = {name}
password = {password}
project_name = service
user_domain_id = default
project_domain_id = default
service_token_roles_required = true
token_cache_time = 60
"""
CALLS = """\
[{section}]
auth_url = {keystone}
auth_type = password
username = {name}
password = {password}
project_name = service
user_domain_id = default
project_domain_id = default
region_name = RegionOne
"""
GLANCE = """\
[DEFAULT]
bind_host = 127.0.0.1
bind_port = {port}
workers = 0
enabled_backends = files:file
log_file = {dir}/log/glance.log
[database]
connection = {db}/glance
[paste_deploy]
flavor = keystone
config_file = {dir}/etc/glance-paste.ini
[glance_store]
default_backend = files
[files]
filesystem_store_datadir = {dir}/state/images
[os_glance_staging_store]
filesystem_store_datadir = {dir}/state/staging
[os_glance_tasks_store]
filesystem_store_datadir = {dir}/state/tasks
[oslo_concurrency]
lock_path = {dir}/state/lock
"""
GLANCE_PASTE = """\
[pipeline:glance-api-keystone]
pipeline = versions_first authtoken context root
[composite:root]
paste.composite_factory = glance.api:root_app_factory
/: versions
/v2: v2
[app:versions]
paste.app_factory = glance.api.versions:create_resource
[app:v2]
paste.app_factory = glance.api.v2.router:API.factory
[filter:versions_first]
paste.filter_factory = glance.api.middleware.version_negotiation:VersionNegotiationFilter.factory
[filter:context]
paste.filter_factory = glance.api.middleware.context:ContextMiddleware.factory
[filter:authtoken]
paste.filter_factory = keystonemiddleware.auth_token:filter_factory
delay_auth_decision = true
"""
PLACEMENT = """\
[DEFAULT]
log_file = {dir}/log/placement.log
[placement_database]
connection = {db}/placement
[api]
auth_strategy = keystone
"""
NEUTRON = """\
[DEFAULT]
bind_host = 127.0.0.1
bind_port = {port}
api_workers = 1
rpc_workers = 0
rpc_state_report_workers = 0
core_plugin = ml2
service_plugins = router
transport_url = {bus}
auth_strategy = keystone
notify_nova_on_port_status_changes = true
notify_nova_on_port_data_changes = true
log_file = {dir}/log/neutron.log
state_path = {dir}/state/neutron
api_paste_config = {dir}/etc/neutron-paste.ini
[database]
connection = {db}/neutron
[oslo_concurrency]
lock_path = {dir}/state/lock
[ml2]
type_drivers = local
tenant_network_types = local
mechanism_drivers = rota_test
extension_drivers = port_security
[quotas]
quota_port = -1
quota_floatingip = -1
"""
NEUTRON_PASTE = """\
[composite:neutron]
use = egg:Paste#urlmap
/: versions
/v2.0: v2
[composite:v2]
use = call:neutron.auth:pipeline_factory
keystone = request_id errors authtoken context extensions app
[filter:request_id]
paste.filter_factory = oslo_middleware:RequestId.factory
[filter:errors]
paste.filter_factory = oslo_middleware:CatchErrors.factory
[filter:context]
paste.filter_factory = neutron.auth:NeutronKeystoneContext.factory
[filter:authtoken]
paste.filter_factory = keystonemiddleware.auth_token:filter_factory
[filter:extensions]
paste.filter_factory = neutron.api.extensions:plugin_aware_extension_middleware_factory
[app:versions]
paste.app_factory = neutron.pecan_wsgi.app:versions_factory
[app:app]
paste.app_factory = neutron.api.v2.router:APIRouter.factory
"""
NOVA = """\
[DEFAULT]
my_ip = 127.0.0.1
host = {host}
transport_url = {bus}
enabled_apis = osapi_compute
osapi_compute_listen = 127.0.0.1
osapi_compute_listen_port = {port}
osapi_compute_workers = 1
compute_driver = {driver}
state_path = {dir}/state/nova-{host}
instances_path = {dir}/state/nova-{host}
vif_plugging_is_fatal = false
vif_plugging_timeout = 0
# Sooner than by default: a delete that was lost on the way is done again after a minute.
running_deleted_instance_poll_interval = 60
sync_power_state_interval = 60
[api]
auth_strategy = keystone
[wsgi]
api_paste_config = {dir}/etc/nova-paste.ini
[database]
connection = {db}/nova
[api_database]
connection = {db}/nova_api
[glance]
api_servers = {glance}
[oslo_concurrency]
lock_path = {dir}/state/lock
[conductor]
workers = 1
[scheduler]
workers = 1
discover_hosts_in_cells_interval = 5
[cache]
enabled = false
[workarounds]
skip_cpu_compare_on_dest = true
[vnc]
enabled = false
"""
NOVA_PASTE = """\
[composite:osapi_compute]
use = call:nova.api.openstack.urlmap:urlmap_factory
/: all_versions
/v2.1: version
/v2.1/+: v21
[composite:v21]
use = call:nova.api.auth:pipeline_factory_v21
keystone = request_id faults sizes authtoken context gates app
[pipeline:all_versions]
pipeline = faults all_versions_app
[pipeline:version]
pipeline = faults version_app
[filter:request_id]
paste.filter_factory = nova.api.compute_req_id:ComputeReqIdMiddleware.factory
[filter:faults]
paste.filter_factory = nova.api.openstack:FaultWrapper.factory
[filter:sizes]
paste.filter_factory = oslo_middleware:RequestBodySizeLimiter.factory
[filter:context]
paste.filter_factory = nova.api.auth:NovaKeystoneContext.factory
[filter:authtoken]
paste.filter_factory = keystonemiddleware.auth_token:filter_factory
[filter:gates]
paste.filter_factory = request_gates:factory
[app:app]
paste.app_factory = nova.api.openstack.compute:APIRouterV21.factory
[app:all_versions_app]
paste.app_factory = nova.api.openstack.compute.versions:Versions.factory
[app:version_app]
paste.app_factory = nova.api.openstack.compute.versions:VersionsV2.factory
"""
PORTS_DRIVER = '''\
"""Binds every port, as an agent on a host would have it."""

from neutron_lib.plugins.ml2 import api


class Driver(api.MechanismDriver):
    def initialize(self):
        pass

    def bind_port(self, context):
        segment = context.segments_to_bind[0]
        context.set_binding(segment[api.ID], "ovs", {"port_filter": True}, status="ACTIVE")
'''
GATES = '''\
"""Holds requests for servers and for their end, before these are carried out or answered, while a test says so."""

import os
import time

KNOBS = os.environ["HYPERVISOR_KNOBS"]


def hold(name):
    while os.path.exists(KNOBS + "/" + name):
        open(KNOBS + "/" + name + ".held", "w").close()
        time.sleep(0.1)


class Gates:
    def __init__(self, app):
        self.app = app

    def __call__(self, environ, start_response):
        words = (environ["REQUEST_METHOD"], environ["PATH_INFO"].strip("/").split("/"))
        create = words[0] == "POST" and words[1][-1] == "servers"
        delete = words[0] == "DELETE" and words[1][-2:-1] == ["servers"]
        if not (create or delete):
            return self.app(environ, start_response)
        what = "create" if create else "delete"
        hold("hold-" + what)
        answer = self.app(environ, start_response)
        hold("hold-" + what + "d")
        return answer


def factory(settings, **more):
    return Gates
'''
HYPERVISOR = '''\
"""Nova's fake hypervisor, on which a test can make servers slow to build or impossible to delete; it has gpus."""

import os
import time

from nova import exception
from nova.virt import fake

KNOBS = os.environ["HYPERVISOR_KNOBS"]


class Driver(fake.FakeDriver):
    def update_provider_tree(self, tree, name, allocations=None):
        super().update_provider_tree(tree, name, allocations)
        gpus = {"total": 4, "min_unit": 1, "max_unit": 4, "step_size": 1, "allocation_ratio": 1.0, "reserved": 0}
        tree.update_inventory(name, {**tree.data(name).inventory, "VGPU": gpus})

    def spawn(self, context, instance, *args, **more):
        while os.path.exists(KNOBS + "/slow-spawn"):
            time.sleep(0.2)
        if os.path.exists(KNOBS + "/fail-spawn"):
            raise exception.BuildAbortException(instance_uuid=instance.uuid, reason="the hypervisor is out of order")
        return super().spawn(context, instance, *args, **more)

    def destroy(self, context, instance, *args, **more):
        if os.path.exists(KNOBS + "/fail-destroy"):
            raise exception.InstanceTerminationFailure(reason="the hypervisor does not let go")
        while os.path.exists(KNOBS + "/slow-destroy"):
            time.sleep(0.2)
        return super().destroy(context, instance, *args, **more)
'''
NURSERY = '''\
"""Has nova in memory, and becomes its programs: reading it takes each of them seconds. A line of stdin is one, as JSON:
its words, where its output goes, and where its exit status; the program itself answers with its pid.
"""

import importlib
import json
import os
import signal
import sys
import traceback

fork = os.fork  # not eventlet's
lines = sys.stdin.buffer
answers = os.dup(1)
mains = {name: importlib.import_module("nova.cmd." + name.partition("-")[2]).main for name in sys.argv[1:]}
import hypervisor

sys.modules["nova.virt.hypervisor"] = hypervisor  # nova-compute takes drivers from that package only
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in iter(lines.readline, b""):
    given = json.loads(line)
    if fork() != 0:
        continue
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        for number in (1, 2):
            os.dup2(os.open(given["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
        sys.argv = given["words"]
        os.write(answers, b"%d\\n" % os.getpid())
        os.close(answers)
        code = mains[sys.argv[0]]() or 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        with open(given["status"], "w") as file:
            file.write(str(code))
        os._exit(code)
'''


class Forked:
    """A program that is not our own child; told apart by when it began."""

    def __init__(self, pid):
        self.pid = pid
        self._began = ticks(pid)

    def poll(self):
        return None if self._began is not None and ticks(self.pid) == self._began else 0

    def wait(self, timeout):
        wait_for(f"the end of {self.pid}", lambda: self.poll() is not None, timeout, 0.02)
        return 0


class ApiError(Exception):
    """The cloud said no."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text[:500]}")
        self.code = code


class Api:
    """The cloud's APIs as one user sees them: what tests check rota by, without rota's own client."""

    def __init__(self, keystone, user, password, project):
        self._keystone = keystone
        self._identity = (user, password, project)
        self._token = None
        self._catalog = {}
        self._lock = threading.Lock()
        self.project_id = None

    def _log_in(self):
        user, password, project = self._identity
        domain = {"id": "default"}
        body = {
            "auth": {
                "identity": {
                    "methods": ["password"],
                    "password": {"user": {"name": user, "password": password, "domain": domain}},
                },
                "scope": {"project": {"name": project, "domain": domain}},
            }
        }
        answer, headers = _http("POST", f"{self._keystone}/auth/tokens", body, {})
        found = answer["token"]
        self._catalog = {row["type"]: row["endpoints"][0]["url"] for row in found["catalog"] if row["endpoints"]}
        self._catalog["identity"] = self._keystone
        self.project_id = found["project"]["id"]
        self._token = headers["X-Subject-Token"]

    def __call__(self, method, service, path, body=None, data=None, headers=(), version="2.90"):
        """One request; the answer's JSON (None: it has none)."""
        with self._lock:
            if self._token is None:
                self._log_in()
        for again in (True, False):
            given = {"X-Auth-Token": self._token, **dict(headers)}
            if service == "compute":
                given["OpenStack-API-Version"] = f"compute {version}"
            try:
                return _http(method, f"{self._catalog[service]}{path}", body, given, data)[0]
            except ApiError as error:
                if error.code != 401 or not again:
                    raise
                self._log_in()
        raise AssertionError("not reached")

    def log_out(self):
        """Take a new token for the next request."""
        self._token = None

    def servers(self, everybodys=False):
        """All servers, in detail."""
        return self("GET", "compute", f"/servers/detail{'?all_tenants=1' if everybodys else ''}")["servers"]

    def server(self, id):
        """One server; None: there is none."""
        try:
            return self("GET", "compute", f"/servers/{id}")["server"]
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def delete_server(self, id):
        with contextlib.suppress(ApiError):
            self("DELETE", "compute", f"/servers/{id}")


def _http(method, url, body, headers, data=None):
    content = json.dumps(body).encode() if body is not None else data
    given = {"Content-Type": "application/json", "Accept": "application/json", **headers}
    request = urllib.request.Request(url, data=content, method=method, headers=given)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            text = answer.read()
            return (json.loads(text) if text else None), answer.headers
    except urllib.error.HTTPError as error:
        raise ApiError(error.code, error.read().decode(errors="replace")) from None


class RealOpenStack(PrivateCluster):
    """The services, a project `lab` with a user, flavors, images and a network; and what a test does to them."""

    made = 0

    def __init__(self, hosts=2):
        super().__init__("cloud")
        self.environment["PRIVATE_CLUSTER"] = self.directory  # by this the guard finds what daemons started
        for name in [name for name in self.environment if name.startswith("OS_")]:
            del self.environment[name]
        self.hosts = [f"hv{number}" for number in range(1, hosts + 1)]
        self.password = secrets.token_hex(12)
        RealOpenStack.made += 1
        number = (os.getpid() + 50 * RealOpenStack.made) % 250
        self.net = f"10.{200 + number % 50}.{number}"
        """The first three numbers of the servers' addresses."""
        self.times = {}
        """How long the parts of the start took, in seconds."""
        self._argv = {}
        self._facts = {}
        self._nursery = None
        self._nursery_lock = threading.Lock()

    # ---- start ------------------------------------------------------------------------------------------------------

    def start(self):
        began = time.monotonic()
        self._write_files()
        with self._timed("database and bus"):
            self._start_database()
            self._start_bus()
        with self._timed("schemas"):
            self._prepare_databases()
        with self._timed("services"):
            self._start_services()
        with self._timed("contents"):
            self._fill()
        self.times["all"] = time.monotonic() - began

    @contextlib.contextmanager
    def _timed(self, what):
        began = time.monotonic()
        yield
        self.times[what] = time.monotonic() - began

    def _write_files(self):
        for name in ("etc", "py", "knobs", "state/lock", "state/images", "bus", "keys/fernet", "keys/credential"):
            os.makedirs(self.path(name))
        names = ("keystone", "glance", "placement", "neutron", "nova", "mysql", "bus", "distribution", "epmd")
        base = free_ports(len(names))
        self.ports = {name: base + at for at, name in enumerate(names)}
        self.keystone_url = f"http://127.0.0.1:{self.ports['keystone']}/v3"
        self._facts = {
            "dir": self.directory,
            "db": f"mysql+pymysql://os:{self.password}@127.0.0.1:{self.ports['mysql']}",
            "bus": f"rabbit://os:{self.password}@127.0.0.1:{self.ports['bus']}/",
            "keystone": self.keystone_url,
            "glance": f"http://127.0.0.1:{self.ports['glance']}",
            "password": self.password,
            "token_s": 3600,
        }
        self._write_keystone()
        self._write_conf("glance-api.conf", GLANCE, "glance")
        self._write_conf("placement.conf", PLACEMENT, "placement")
        self._write_conf("neutron.conf", NEUTRON, "neutron", nova="nova", placement="placement")
        for host in ("control", *self.hosts, ABORTING):
            driver = "fake.FakeBuildAbortDriver" if host == ABORTING else "hypervisor.Driver"
            calls = {"placement": "placement", "neutron": "neutron", "service_user": "nova"}
            self._write_conf(f"nova-{host}.conf", NOVA, "nova", host=host, driver=driver, **calls)
            with open(self.path(f"etc/nova-{host}.conf"), "a") as file:
                file.write("send_service_user_token = true\n")
            os.makedirs(self.path(f"state/nova-{host}"))
        for name, text in (("glance", GLANCE_PASTE), ("neutron", NEUTRON_PASTE), ("nova", NOVA_PASTE)):
            self.write(f"etc/{name}-paste.ini", text)
        self.write("py/rota_test_ports.py", PORTS_DRIVER)
        self.write("py/hypervisor.py", HYPERVISOR)
        self.write("py/request_gates.py", GATES)
        self.write("py/nursery.py", NURSERY)
        for name in ("fernet/0", "fernet/1", "credential/0", "credential/1"):
            self.write(f"keys/{name}", base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(), 0o600)
        os.makedirs(self.path("py/rota_test_ports-1.dist-info"))
        about = "Metadata-Version: 2.1\nName: rota_test_ports\nVersion: 1\n"
        self.write("py/rota_test_ports-1.dist-info/METADATA", about)
        points = "[neutron.ml2.mechanism_drivers]\nrota_test = rota_test_ports:Driver\n"
        self.write("py/rota_test_ports-1.dist-info/entry_points.txt", points)
        self.environment |= {
            "PYTHONPATH": self.path("py"),
            "PYTHONWARNINGS": "ignore",
            "HYPERVISOR_KNOBS": self.path("knobs"),
            "OS_KEYSTONE_CONFIG_FILES": self.path("etc/keystone.conf"),
            "OS_PLACEMENT_CONFIG_DIR": self.path("etc"),
        }

    def _write_keystone(self):
        self.write("etc/keystone.conf", KEYSTONE.format(**self._facts), 0o600)

    def _write_conf(self, name, text, user, host="", driver="", **calls):
        facts = {**self._facts, "port": self.ports[user], "host": host, "driver": driver}
        parts = [text.format(**facts), AUTH.format(name=user, **self._facts)]
        parts += [CALLS.format(section=section, name=as_user, **self._facts) for section, as_user in calls.items()]
        self.write(f"etc/{name}", "".join(parts), 0o600)

    def mount(self, name, size):
        """A directory in memory; the guard takes it away."""
        place = self.path(name)
        os.makedirs(place, exist_ok=True)
        with open(self.path("mounts"), "a") as file:
            file.write(f"{place}\n")
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "rota-test", place], check=True)
        return place

    def _start_database(self):
        place = self.mount("mysql", "2g")  # thousands of tables are made and changed, each synced
        _own(place, "mysql")
        self.run(
            *("mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={place}", "--skip-test-db"),
            *("--auth-root-authentication-method=socket", "--auth-root-socket-user=root", "--skip-name-resolve"),
            timeout=180,
        )
        self.spawn(
            "mariadbd",
            *("mariadbd", "--no-defaults", "--user=mysql", f"--datadir={place}", f"--socket={place}/sock"),
            *("--bind-address=127.0.0.1", f"--port={self.ports['mysql']}", f"--pid-file={place}/pid"),
            *("--skip-log-bin", "--skip-name-resolve", "--max-connections=400", "--character-set-server=utf8mb3"),
            *("--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=OFF", "--sync-frm=OFF"),
            *("--innodb-flush-method=nosync", "--innodb-log-file-size=32M"),
            *("--innodb-buffer-pool-size=192M", "--performance-schema=OFF"),
        )

    def sql(self, text):
        """Let the database's administrator say something."""
        return self.run("mariadb", "--no-defaults", "-S", self.path("mysql/sock"), "-N", "-B", stdin=text).stdout

    def _start_bus(self):
        _own(self.path("bus"), "rabbitmq")
        self.write(
            "etc/rabbitmq.conf",
            f"listeners.tcp.1 = 127.0.0.1:{self.ports['bus']}\nloopback_users = none\ndefault_user = os\n"
            f"default_pass = {self.password}\nlog.console = true\nvm_memory_high_watermark.absolute = 1GB\n"
            "disk_free_limit.absolute = 10MB\n",
        )
        settings = {
            "HOME": self.path("bus"),
            "RABBITMQ_NODENAME": f"rota{os.getpid()}@localhost",
            "RABBITMQ_CONFIG_FILE": self.path("etc/rabbitmq.conf"),
            "RABBITMQ_MNESIA_BASE": self.path("bus"),
            "RABBITMQ_LOG_BASE": self.path("bus"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.path("bus/plugins"),
            "RABBITMQ_DIST_PORT": str(self.ports["distribution"]),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self.ports["epmd"]),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
        }
        words = ("setpriv", "--reuid=rabbitmq", "--regid=rabbitmq", "--init-groups")
        env = [f"{name}={value}" for name, value in settings.items()]
        self.spawn("bus", "env", *env, *words, "/usr/lib/rabbitmq/bin/rabbitmq-server")

    def _prepare_databases(self):
        ping = ("mariadb-admin", "--no-defaults", "-S", self.path("mysql/sock"), "ping")
        wait_for("mariadbd", lambda: self.answers(*ping), 120)
        grant = "create database {0}; grant all on {0}.* to os@'127.0.0.1' identified by '{1}';\n"
        self.sql("".join(grant.format(name, self.password) for name in DATABASES))
        nova = functools.partial(self._manage, "nova-manage", "nova-control.conf")
        cell0 = f"{self._facts['db']}/nova_cell0"

        def make_nova():
            nova("api_db", "sync")
            nova("cell_v2", "map_cell0", "--database_connection", cell0)
            nova("db", "sync")
            nova("cell_v2", "create_cell", "--name", "cell1")

        def make_keystone():
            manage = functools.partial(self._manage, "keystone-manage", "keystone.conf")
            manage("db_sync")
            urls = [f"--bootstrap-{kind}-url={self.keystone_url}" for kind in ("admin", "internal", "public")]
            manage("bootstrap", "--bootstrap-password", self.password, *urls, "--bootstrap-region-id", "RegionOne")
            self._start_keystone()
            self._fill_catalog()

        _together(
            make_nova,
            make_keystone,
            lambda: self._manage("neutron-db-manage", "neutron.conf", "upgrade", "head"),
            lambda: self._manage("glance-manage", "glance-api.conf", "db_sync"),
            lambda: self._manage("placement-manage", "placement.conf", "db", "sync"),
        )

    def _manage(self, program, conf, *words):
        argv = (*_main(program), "--config-file", self.path(f"etc/{conf}"), *words)
        if program in NOVA_PROGRAMS:
            code = self._fork("-".join((program, *words[:2])), argv, 400)
        else:
            done = self.run(*argv, check=False, timeout=400)
            code = done.returncode
            with open(self.path(f"log/{program}.out"), "a") as file:
                file.write(f"{words}: {code}\n{done.stdout}{done.stderr}")
        if code != 0:
            raise ClusterError(f"{program} {' '.join(words)}: exit {code}")

    def spawn(self, name, *argv):
        """Start a daemon that stays in the foreground."""
        if argv[0] not in NOVA_PROGRAMS:
            return super().spawn(name, *argv)
        self._children[name] = self._fork(name, argv)
        return self._children[name].pid

    def _fork(self, name, argv, wait_s=None):
        """Have the nursery become a program of nova; what stands for it, or if it is waited for its exit status."""
        row = {"words": argv, "log": self.path(f"log/{name}.out"), "status": self.path(f"state/{name}.status")}
        with self._nursery_lock:
            if self._nursery is None:
                self._start_nursery()
            self._nursery.stdin.write(json.dumps(row).encode() + b"\n")
            self._nursery.stdin.flush()
            pid = self._nursery.stdout.readline()
        if not pid:
            raise ClusterError(f"nova cannot be read: see {self.path('log/nursery.out')}")
        self.remember(name, int(pid))
        made = Forked(int(pid))
        if wait_s is None:
            return made
        made.wait(wait_s)
        try:
            with open(row["status"]) as file:
                return int(file.read())
        except (OSError, ValueError):
            return -1

    def _start_nursery(self):
        with open(self.path("log/nursery.out"), "ab") as log:
            self._nursery = subprocess.Popen(
                [PYTHON, self.path("py/nursery.py"), *NOVA_PROGRAMS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment,
                start_new_session=True,
                cwd=self.directory,
            )
        self.remember("nursery", self._nursery.pid)

    def close(self):
        if self._nursery is not None:
            self._nursery.stdin.close()
            self._nursery.stdout.close()
        super().close()
        if self._nursery is not None:
            self._nursery.wait(60)

    def daemon(self, name, *argv):
        """Start a service; remembered, so that it can be started again."""
        self._argv[name] = argv
        self.spawn(name, *argv)

    def _start_keystone(self):
        self.daemon("keystone", *self._uwsgi("keystone", "/usr/bin/keystone-wsgi-public"))
        wait_for("keystone", lambda: _answers(self.keystone_url), 120)

    def _uwsgi(self, name, script):
        """uwsgi's own HTTP has no keep-alive: it must say so, or clients are cut off in their next request.

        One process: keystone's cache is in memory. One thread: two were seen to wait for each other for ever,
        once in a while (the locks of logging, it seems, which oslo.log makes green ones).
        """
        return (
            *("uwsgi", "--plugins", "python3", "--master", "--need-app", "--die-on-term", "--enable-threads"),
            *("--processes", "1", "--threads", "1", "--buffer-size", "65535", "--post-buffering", "8192"),
            *("--listen", "100", "--add-header", "Connection: close", "--disable-logging"),
            *("--http-socket", f"127.0.0.1:{self.ports[name]}", "--wsgi-file", script),
        )

    def _fill_catalog(self):
        """Users of the services, where these are, and the project of the tests."""
        self.admin = Api(self.keystone_url, "admin", self.password, "admin")
        make = functools.partial(self.admin, "POST", "identity")
        domain = {"domain_id": "default"}
        roles = {row["name"]: row["id"] for row in self.admin("GET", "identity", "/roles")["roles"]}
        if "service" not in roles:
            roles["service"] = make("/roles", {"role": {"name": "service"}})["role"]["id"]
        project = make("/projects", {"project": {"name": "service", **domain}})["project"]["id"]
        for name, kind in SERVICES.items():
            user = make("/users", {"user": {"name": name, "password": self.password, **domain}})["user"]["id"]
            for role in ("admin", "service"):
                self.admin("PUT", "identity", f"/projects/{project}/users/{user}/roles/{roles[role]}")
            service = make("/services", {"service": {"name": name, "type": kind}})["service"]["id"]
            url = f"http://127.0.0.1:{self.ports[name]}{'/v2.1' if name == 'nova' else ''}"
            row = {"service_id": service, "interface": "public", "region_id": "RegionOne", "url": url}
            make("/endpoints", {"endpoint": row})
        self.project = make("/projects", {"project": {"name": "lab", **domain}})["project"]["id"]
        row = {"name": "ann", "password": self.password, **domain}
        self.user_id = make("/users", {"user": row})["user"]["id"]
        self.admin("PUT", "identity", f"/projects/{self.project}/users/{self.user_id}/roles/{roles['member']}")
        self.admin = Api(self.keystone_url, "admin", self.password, "admin")  # that catalog was empty
        self.user = Api(self.keystone_url, "ann", self.password, "lab")

    def _start_services(self):
        self.daemon("placement", *self._uwsgi("placement", "/usr/bin/placement-api"))
        self.daemon("glance", *_main("glance-api"), "--config-file", self.path("etc/glance-api.conf"))
        wait_for("the message bus", self._bus_is_up, 180)
        self.daemon("neutron", *_main("neutron-server"), "--config-file", self.path("etc/neutron.conf"))
        for name in ("nova-conductor", "nova-scheduler", "nova-api"):
            self.daemon(name, *_main(name), "--config-file", self.path("etc/nova-control.conf"))
        for name in ("placement", "glance", "neutron", "nova"):
            wait_for(name, lambda name=name: self._all_live() and self.is_up(name), 180, 0.1)
        # neutron answers 500 to a question about ports until its first write
        wait_for("neutron's first network", self._warm_up, 120, 0.5)
        for host in (*self.hosts, ABORTING):
            conf = self.path(f"etc/nova-{host}.conf")
            self.daemon(f"nova-compute-{host}", *_main("nova-compute"), "--config-file", conf)

    def _all_live(self):
        """True; raises if a service has ended."""
        ended = [name for name, child in self._children.items() if child.poll() is not None]
        if ended:
            raise ClusterError(f"{', '.join(ended)} ended")
        return True

    def _bus_is_up(self):
        import socket

        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.ports["bus"]), 2):
            return True
        return False

    def is_up(self, name):
        """Whether an API answers."""
        return _answers(f"http://127.0.0.1:{self.ports[name]}/")

    def _warm_up(self):
        try:
            made = self.admin("POST", "network", "/v2.0/networks", {"network": {"name": "first"}})
            self.admin("DELETE", "network", f"/v2.0/networks/{made['network']['id']}")
        except (ApiError, OSError):
            return False
        return True

    def _compute_services(self):
        return self.admin("GET", "compute", "/os-services?binary=nova-compute")["services"]

    def _hosts_listen(self):
        """Whether all hypervisors take orders: they are `up` some seconds before, and what is sent then is lost."""
        try:
            rows = {row["host"] for row in self._compute_services() if row["state"] == "up" and row["updated_at"]}
            return self._all_live() and rows >= {*self.hosts, ABORTING}
        except (ApiError, OSError):
            return False

    def _fill(self):
        for name, (cores, memory, disk) in FLAVORS.items():
            row = {"name": name, "vcpus": cores, "ram": memory, "disk": disk}
            made = self.admin("POST", "compute", "/flavors", {"flavor": row})["flavor"]
            if name in SPECS:
                self.admin("POST", "compute", f"/flavors/{made['id']}/os-extra_specs", {"extra_specs": SPECS[name]})
        self.images = {}
        for name in IMAGES:
            row = {"name": name, "disk_format": "raw", "container_format": "bare", "visibility": "public"}
            made = self.admin("POST", "image", "/v2/images", row)
            self.images[name] = made["id"]
            self.admin(
                *("PUT", "image", f"/v2/images/{made['id']}/file"),
                data=b"\0" * 1024,
                headers=[("Content-Type", "application/octet-stream")],
            )
        made = self.user("POST", "network", "/v2.0/networks", {"network": {"name": "inside"}})["network"]
        row = {
            "network_id": made["id"],
            "ip_version": 4,
            "cidr": f"{self.net}.0/24",
            "gateway_ip": None,
            "enable_dhcp": False,
            "allocation_pools": [{"start": f"{self.net}.10", "end": f"{self.net}.200"}],
        }
        self.user("POST", "network", "/v2.0/subnets", {"subnet": row})
        self.set_quota(instances=20, cores=60, ram=200 * GIB)
        wait_for("the hypervisors", self._hosts_listen, 180, 0.5)
        self._manage("nova-manage", "nova-control.conf", "cell_v2", "discover_hosts")
        self.allow_host(ABORTING, False)
        self.write(
            "clouds.yaml",
            json.dumps(
                {
                    "clouds": {
                        "test": {
                            "auth": {
                                "auth_url": self.keystone_url,
                                "username": "ann",
                                "password": self.password,
                                "project_name": "lab",
                                "user_domain_id": "default",
                                "project_domain_id": "default",
                            },
                            "region_name": "RegionOne",
                            "identity_api_version": 3,
                        }
                    }
                }
            ),
            0o600,
        )
        self.client = {"OS_CLIENT_CONFIG_FILE": self.path("clouds.yaml")}
        """What makes `openstack` and rota find the cloud `test`."""

    # ---- what a test does to it -------------------------------------------------------------------------------------

    def set_quota(self, **most):
        """Let the project have so many instances, cores, MiB of ram."""
        self.admin("PUT", "compute", f"/os-quota-sets/{self.project}", {"quota_set": most})

    def allow_host(self, host, allowed):
        """Let the scheduler use a hypervisor, or not."""
        (row,) = [row for row in self._compute_services() if row["host"] == host]
        status = "enabled" if allowed else "disabled"
        self.admin("PUT", "compute", f"/os-services/{row['id']}", {"status": status})

    @contextlib.contextmanager
    def only_aborting(self):
        """Every server that is asked for meanwhile fails (nova's FakeBuildAbortDriver)."""
        self.allow_host(ABORTING, True)
        for host in self.hosts:
            self.allow_host(host, False)
        try:
            yield
        finally:
            for host in self.hosts:
                self.allow_host(host, True)
            self.allow_host(ABORTING, False)

    @contextlib.contextmanager
    def knob(self, name):
        """Meanwhile the hypervisors are `slow-spawn`, `fail-spawn`, `slow-destroy` or `fail-destroy`; or the API holds
        requests: `hold-create`, `hold-delete` before they are carried out, `hold-created`, `hold-deleted` before they
        are answered.
        """
        path = self.path(f"knobs/{name}")
        open(path, "w").close()
        try:
            yield
        finally:
            for each in (path, f"{path}.held"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(each)

    def holds(self, name):
        """Whether a request is held by this knob, or was."""
        return os.path.exists(self.path(f"knobs/{name}.held"))

    def stop_service(self, *names):
        """End daemons at once, with whatever they started."""
        for name in names:
            child = self._children[name]
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # each has a session of its own
            child.wait(60)
            wait_for(f"the end of {name}", lambda pid=child.pid: not any(map(ticks, sessions({pid}))), 120, 0.05)

    def start_service(self, *names):
        """Start them again, and wait until they answer."""
        for name in names:
            self.spawn(name, *self._argv[name])
        for name in names:
            api = name.removesuffix("-api")
            if api in self.ports:
                wait_for(name, lambda name=name, api=api: self._lives(name) and self.is_up(api), 180, 0.1)

    def _lives(self, name):
        """True; one that has ended is started again: its port may not have been free yet."""
        if self._children[name].poll() is not None:
            self.spawn(name, *self._argv[name])
        return True

    @contextlib.contextmanager
    def down(self, *names):
        """Meanwhile these services are not there."""
        self.stop_service(*names)
        try:
            yield
        finally:
            self.start_service(*names)

    @contextlib.contextmanager
    def hanging(self, *names):
        """Meanwhile they take connections and answer nothing."""
        groups = [self._children[name].pid for name in names]
        for group in groups:
            os.killpg(group, signal.SIGSTOP)
        try:
            yield
        finally:
            for group in groups:
                os.killpg(group, signal.SIGCONT)

    @contextlib.contextmanager
    def short_tokens(self, seconds):
        """Meanwhile tokens are good for so long only."""
        self._facts["token_s"] = seconds
        self._write_keystone()
        self.stop_service("keystone")
        self.start_service("keystone")
        try:
            yield
        finally:
            self._facts["token_s"] = 3600
            self._write_keystone()
            self.stop_service("keystone")
            self.start_service("keystone")

    def revoke_tokens(self):
        """Make all tokens of the user worthless, as a change of the password does."""
        self.admin("PATCH", "identity", f"/users/{self.user_id}", {"user": {"password": self.password}})
        time.sleep(1.1)  # a token of the same second is worthless too
        self.user.log_out()  # nova takes one for good for a minute that glance refuses
        wait_for("a token that is good", self._is_logged_in, 60, 1.0)

    def _is_logged_in(self):
        try:
            self.user.servers()
        except ApiError:
            self.user.log_out()
            return False
        return True

    def servers(self):
        """All servers of the project, as nova has them."""
        return self.user.servers()

    def clear(self):
        """Make it as it was: no servers, no key pairs, all services there."""
        for name in os.listdir(self.path("knobs")):
            os.unlink(self.path(f"knobs/{name}"))

        stuck = time.monotonic() + 60

        def gone():
            with contextlib.suppress(ApiError, OSError):
                left = self.servers()
                for row in left:
                    if row["OS-EXT-STS:task_state"] == "deleting":
                        if time.monotonic() < stuck:
                            continue
                        reset = {"os-resetState": {"state": "error"}}  # nova ignores who asks again
                        self.admin("POST", "compute", f"/servers/{row['id']}/action", reset)
                    self.admin.delete_server(row["id"])
                return not left
            return False

        wait_for("all servers to be gone", gone, 300, 1)
        for row in self.user("GET", "compute", "/os-keypairs")["keypairs"]:
            self.user("DELETE", "compute", f"/os-keypairs/{row['keypair']['name']}")
        self.set_quota(instances=20, cores=60, ram=200 * GIB)

    def memory(self):
        """Bytes of memory that all its processes have for themselves (PSS)."""
        total = 0
        mark = f"PRIVATE_CLUSTER={self.directory}".encode()
        for name in os.listdir("/proc"):
            if name.isdigit() and ticks(name):
                with contextlib.suppress(OSError):
                    with open(f"/proc/{name}/environ", "rb") as file:
                        if mark not in file.read().split(b"\0"):
                            continue
                    with open(f"/proc/{name}/smaps_rollup") as file:
                        total += next(int(line.split()[1]) for line in file if line.startswith("Pss:")) * 1024
        return total


def _main(program):
    module = MAINS.get(program)
    if module is None:
        return (program,)
    code = f"import sys; from {module} import main; sys.argv[0] = {program!r}; sys.exit(main())"
    return (PYTHON, "-c", code)


def _answers(url):
    try:
        urllib.request.urlopen(url, timeout=10).close()
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False
    return True


def _own(path, user):
    subprocess.run(["chown", f"{user}:", path], check=True)


def _together(*works):
    """Do these at one time; the first error is raised once all are over."""
    errors = []

    def do(work):
        try:
            work()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=do, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
