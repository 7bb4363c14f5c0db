//! The parts of the tests: which packages and test binaries run together.
//!
//! The packages that a cargo command selects decide the features of their dependencies, and cargo
//! builds a dependency again for each set of features. So the parts that share dependencies select
//! the same packages, and differ only in their targets.

/// A part of the tests, which `cargo xtask test <name>` runs alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub name: &'static str,
    /// The packages that cargo selects.
    pub packages: &'static [&'static str],
    pub features: Features,
    pub targets: Targets,
    /// The part has stress tests with a duration, or tests that the set of CI ignores.
    pub has_long_tests: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Features {
    Default,
    All,
}

/// The targets of the packages that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Everything that `cargo test` runs, with the examples in the documentation.
    All,
    /// Only the unit tests, which need no server.
    Units,
    /// The libraries, the programs and these test binaries.
    Binaries(&'static [&'static str]),
    /// Only these test binaries.
    Only(&'static [&'static str]),
    /// Only the examples in the documentation, also of packages with `doctest = false`.
    DocTests,
}

/// The packages that are tested with the features with which they are built for users.
const PLAIN: &[&str] = &[
    "idem-core",
    "idem-cluster",
    "idem-brokers",
    "idem-relay",
    "idem-compile-fail",
    "idem-testkit",
    "xtask",
];

/// The packages whose tests use live servers: the client, the runtime and the integrations, the
/// guides, the tests of the extension, the demo and the benchmarks.
pub const LIVE: &[&str] = &[
    "idem-bench",
    "idem-chaos",
    "idem-client",
    "idem-demo",
    "idem-drivers",
    "idem-guides",
    "idem-http",
    "idem-integration-tests",
    "idem-kafka",
    "idem-nats",
    "idem-postgres",
    "idem-rabbitmq",
    "idem-runtime",
    "idem-spec",
    "idem-sqlx",
    "idem-stories",
    "idem-stress",
    "idem-tests",
];

/// The test binaries of the client, the runtime and the integrations.
pub const CLIENT_TESTS: &[&str] = &[
    "admin",
    "blocking",
    "brokers",
    "calls",
    "consumer",
    "effect",
    "errors",
    "examples",
    "executors",
    "http",
    "inbox",
    "journal",
    "kafka",
    "lease",
    "names",
    "policies",
    "process",
    "propagator",
    "relay",
    "sqlx",
    "telemetry",
    "test_util",
    "tls",
];

/// The other test binaries of [`LIVE`], except [`RACES`] and [`SERVER`].
pub const OTHERS: &[&str] = &[
    "backlog",
    "campaign",
    "demo",
    "docs",
    "drivers",
    "isolation",
    "leases",
    "ledger",
    "live_range",
    "packages",
    "protection",
    "rotation",
    "shooting_range",
    "spec",
    "stories",
];

/// The test binary with the deterministic tests of races. It needs the build with pause points.
pub const RACES: &str = "races";

/// The drivers of all languages. The set of CI ignores most of them.
pub const DRIVERS: Part = live("drivers", Targets::Only(&["drivers"]));

/// The largest test binary. It runs last and alone, so that its summary ends the output.
pub const SERVER: &str = "server";

pub const UNITS: Part = Part {
    name: "units",
    packages: PLAIN,
    features: Features::Default,
    targets: Targets::All,
    has_long_tests: false,
};

/// The unit tests of [`LIVE`], and the tests of the client, the runtime and the integrations.
pub const CLIENTS: Part = Part {
    name: "client",
    packages: LIVE,
    features: Features::All,
    targets: Targets::Binaries(CLIENT_TESTS),
    has_long_tests: false,
};

/// The examples in the documentation of [`LIVE`].
const DOC_TESTS: Part = Part {
    name: "doc-tests",
    targets: Targets::DocTests,
    ..CLIENTS
};

/// The model of the protocol.
pub const MODEL: Part = Part {
    name: "model",
    packages: &["idem-model"],
    features: Features::Default,
    targets: Targets::All,
    has_long_tests: false,
};

/// The parts of the set of CI, in their order.
pub const CI: [Part; 7] = [
    UNITS,
    MODEL,
    CLIENTS,
    DOC_TESTS,
    live("live servers", Targets::Only(OTHERS)),
    live(RACES, Targets::Only(&[RACES])),
    live(SERVER, Targets::Only(&[SERVER])),
];

/// Further parts, which run only when they are selected by name. [`CI`] runs their tests in larger
/// parts, except most of [`DRIVERS`].
const SINGLE: [Part; 13] = [
    package("bench", &["idem-bench"]),
    package("chaos", &["idem-chaos"]),
    package("demo", &["idem-demo"]),
    package("stories", &["idem-stories"]),
    package("stress", &["idem-stress"]),
    live("docs", Targets::Only(&["docs"])),
    DRIVERS,
    live("isolation", Targets::Only(&["isolation"])),
    live("packages", Targets::Only(&["packages"])),
    live("spec", Targets::Only(&["spec"])),
    client("http", &["idem-http"]),
    Part {
        name: "integrations",
        targets: Targets::Only(&["brokers", "examples", "kafka", "tls"]),
        ..CLIENTS
    },
    client("runtime", &["idem-runtime"]),
];

/// Returns the part with this name.
pub fn named(name: &str) -> Option<Part> {
    let mut parts = CI.into_iter().chain(SINGLE);
    parts.find(|part| part.name == name)
}

/// Returns the names of all parts.
pub fn names() -> Vec<&'static str> {
    CI.iter().chain(&SINGLE).map(|part| part.name).collect()
}

const fn live(name: &'static str, targets: Targets) -> Part {
    Part {
        name,
        packages: LIVE,
        features: Features::All,
        targets,
        has_long_tests: true,
    }
}

const fn package(name: &'static str, packages: &'static [&'static str]) -> Part {
    Part {
        packages,
        ..live(name, Targets::All)
    }
}

const fn client(name: &'static str, packages: &'static [&'static str]) -> Part {
    Part {
        name,
        packages,
        targets: Targets::All,
        ..CLIENTS
    }
}
