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
    None,
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

/// The client, the runtime and the integrations, and the guides, which use their features.
const CLIENT: &[&str] = &[
    "idem-client",
    "idem-guides",
    "idem-http",
    "idem-integration-tests",
    "idem-kafka",
    "idem-nats",
    "idem-rabbitmq",
    "idem-runtime",
];

/// The packages with tests on live servers, the demo and the benchmarks.
pub const LIVE: &[&str] = &[
    "idem-bench",
    "idem-chaos",
    "idem-demo",
    "idem-stories",
    "idem-stress",
    "idem-tests",
];

/// The test binaries of [`LIVE`], except [`RACES`] and [`SERVER`].
pub const OTHERS: &[&str] = &[
    "backlog",
    "campaign",
    "demo",
    "docs",
    "isolation",
    "leases",
    "ledger",
    "live_range",
    "protection",
    "rotation",
    "shooting_range",
    "spec",
    "stories",
];

/// The test binary with the deterministic tests of races. It needs the build with pause points.
pub const RACES: &str = "races";

/// The test binary that needs the library of the previous version.
pub const UPGRADE_BINARY: &str = "upgrade";

/// The upgrade from the library of the previous version. It is not in the set of CI, because that
/// library takes minutes to build.
pub const UPGRADE: Part = live("upgrade", Targets::Only(&[UPGRADE_BINARY]));

/// The largest test binary. It runs last and alone, so that its summary ends the output.
pub const SERVER: &str = "server";

pub const UNITS: Part = Part {
    name: "units",
    packages: PLAIN,
    features: Features::Default,
    targets: Targets::All,
    has_long_tests: false,
};

pub const CLIENTS: Part = Part {
    name: "client",
    packages: CLIENT,
    features: Features::All,
    targets: Targets::All,
    has_long_tests: false,
};

/// The model of the protocol.
pub const MODEL: Part = Part {
    name: "model",
    packages: &["idem-model"],
    features: Features::Default,
    targets: Targets::All,
    has_long_tests: false,
};

/// The unit tests of the runtime without its features: they test the code that is compiled only
/// when a feature is disabled.
const WITHOUT_FEATURES: Part = Part {
    name: "runtime without features",
    packages: &["idem-runtime"],
    features: Features::None,
    targets: Targets::Units,
    has_long_tests: false,
};

/// The parts of the set of CI, in their order.
pub const CI: [Part; 7] = [
    UNITS,
    MODEL,
    WITHOUT_FEATURES,
    CLIENTS,
    live("live servers", Targets::Binaries(OTHERS)),
    live(RACES, Targets::Only(&[RACES])),
    live(SERVER, Targets::Only(&[SERVER])),
];

/// Further parts, which run only when they are selected by name. [`CI`] runs their tests in larger
/// parts, except those of [`UPGRADE`].
const SINGLE: [Part; 12] = [
    UPGRADE,
    package("bench", &["idem-bench"]),
    package("chaos", &["idem-chaos"]),
    package("demo", &["idem-demo"]),
    package("stories", &["idem-stories"]),
    package("stress", &["idem-stress"]),
    live("docs", Targets::Only(&["docs"])),
    live("isolation", Targets::Only(&["isolation"])),
    live("spec", Targets::Only(&["spec"])),
    client("http", &["idem-http"]),
    client(
        "integrations",
        &[
            "idem-integration-tests",
            "idem-kafka",
            "idem-nats",
            "idem-rabbitmq",
        ],
    ),
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
        features: Features::Default,
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
        ..CLIENTS
    }
}
