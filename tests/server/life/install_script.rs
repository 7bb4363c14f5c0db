//! Compares the objects that two versions of the extension create, for tests of updates. A script
//! with broken objects proves the comparison.
//!
//! The test compares the output of `pg_dump --binary-upgrade`. pg_upgrade creates a database from
//! this output alone, so the output has every property of every object. It also creates each member
//! of an extension, with its membership, privileges and initial privileges. Queries of the catalogs
//! would compare only the properties that their author knew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};
use idem_cluster::{Cluster, Install};
use idem_testkit::Session;

use idem_testkit::private_install::{PrivateInstall, create};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn built_script(install: &Install) -> Result<String> {
    let directory = install.share_dir().join("extension");
    let path = directory.join(format!("idem--{VERSION}.sql"));
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// All objects and initial rows of a database, each by its header. The texts contain no OIDs and
/// no times.
type Catalog = BTreeMap<String, String>;

/// Installs a version of the extension in a new database and returns its objects.
async fn install(cluster: &Cluster, version: &str) -> Result<Catalog> {
    let database = version.replace('.', "_");
    create(cluster, &database, version).await?;
    catalog(cluster, &database).await
}

/// Returns the objects of a database.
async fn catalog(cluster: &Cluster, database: &str) -> Result<Catalog> {
    let session = Session::superuser(cluster, database).await?;
    let dump = cluster.run(
        "pg_dump",
        ["--binary-upgrade", "--schema-only", database],
        &[],
    )?;
    let mut catalog = objects(&dump);
    ensure_complete(&session, &dump).await?;
    catalog.insert(
        "configuration tables".to_owned(),
        session.text(CONFIGURATION).await?,
    );
    // Since PostgreSQL 18 the output has no state of sequences; `rows` reads it.
    catalog.retain(|header, _| !header.contains("; Type: SEQUENCE SET; "));
    rows(&session, &mut catalog).await?;
    Ok(catalog)
}

/// Splits the output of pg_dump into its objects, by their headers, without what differs in each
/// database: OIDs, file numbers and transaction ids.
fn objects(dump: &str) -> Catalog {
    let mut objects = Catalog::new();
    let mut header = String::new();
    for line in dump.lines() {
        if let Some(name) = line.strip_prefix("-- Name: ") {
            // The name without the owner is enough, because a statement of the object sets the
            // owner.
            let (name, _owner) = name.split_once("; Owner: ").unwrap_or((name, ""));
            name.clone_into(&mut header);
        } else if !header.is_empty() && !is_unstable(line) {
            let text = objects.entry(header.clone()).or_default();
            text.push_str(line);
            text.push('\n');
        }
    }
    objects
}

fn is_unstable(line: &str) -> bool {
    let unstable = [
        "SELECT pg_catalog.binary_upgrade_set_next_",
        // The version, and the OIDs of the configuration tables, which `CONFIGURATION` reads.
        "SELECT pg_catalog.binary_upgrade_create_empty_extension(",
        "SET relfrozenxid = ",
        // A random key of each dump.
        "\\restrict ",
        "\\unrestrict ",
    ];
    // The dump names a TOAST table only by its OID, which differs in each database.
    let is_toast = line
        .strip_prefix("WHERE oid = '")
        .is_some_and(|oid| oid.starts_with(|c: char| c.is_ascii_digit()));
    is_toast || unstable.iter().any(|start| line.starts_with(start))
}

/// The extension, and the tables and sequences whose rows a dump contains, with their conditions.
const CONFIGURATION: &str = "
    SELECT x.extnamespace::regnamespace, x.extrelocatable, x.extowner::regrole,
           c.relation::regclass, c.condition
      FROM pg_extension x, unnest(x.extconfig, x.extcondition) AS c(relation, condition)
     WHERE x.extname = 'idem' ORDER BY c.relation::regclass::text";

/// Fails when pg_dump has not printed each member of the extension. Since PostgreSQL 17 row types
/// and array types are members too, and belong to another member.
async fn ensure_complete(session: &Session, dump: &str) -> Result<()> {
    let members = session
        .text(
            "SELECT count(*) FROM pg_depend d JOIN pg_extension x ON x.oid = d.refobjid
              WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
                AND x.extname = 'idem'
                AND NOT EXISTS (SELECT FROM pg_depend i
                                 WHERE i.classid = d.classid AND i.objid = d.objid
                                   AND i.deptype = 'i')",
        )
        .await?;
    let printed = dump
        .lines()
        .filter(|line| line.starts_with("ALTER EXTENSION idem ADD "))
        .count();
    assert_eq!(printed.to_string(), members, "members of the extension");
    Ok(())
}

/// Adds the rows of all tables and the states of all sequences, without the columns that contain
/// times or transaction ids.
async fn rows(session: &Session, catalog: &mut Catalog) -> Result<()> {
    let tables = session
        .text(
            "SELECT a.attrelid::regclass,
                    coalesce(array_agg(a.attname) FILTER (WHERE a.atttypid IN
                        ('timestamptz'::regtype, 'xid8'::regtype, 'uuid'::regtype)), '{}')
               FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
              WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind = 'r' AND a.attnum > 0
                AND NOT a.attisdropped
              GROUP BY 1",
        )
        .await?;
    for (table, unstable) in tables.lines().filter_map(|line| line.split_once('|')) {
        let rows = session
            .text(&format!(
                "SELECT to_jsonb(t) - '{unstable}'::text[] FROM {table} t ORDER BY 1"
            ))
            .await?;
        catalog.insert(format!("rows of {table}"), rows);
    }
    let sequences = session
        .text(
            "SELECT c.oid::regclass FROM pg_class c
              WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind = 'S'",
        )
        .await?;
    for sequence in sequences.lines() {
        let state = session
            .text(&format!("SELECT last_value, is_called FROM {sequence}"))
            .await?;
        catalog.insert(format!("state of {sequence}"), state);
    }
    Ok(())
}

/// Returns the headers of the objects that differ or that one catalog does not have.
fn differences<'c>(a: &'c Catalog, b: &'c Catalog) -> Vec<&'c str> {
    let all: BTreeSet<_> = a.keys().chain(b.keys()).collect();
    all.into_iter()
        .filter(|header| a.get(*header) != b.get(*header))
        .map(String::as_str)
        .collect()
}

/// A change that breaks the script.
struct Broken {
    /// What is broken.
    what: &'static str,
    /// The statement that breaks it, at the end of the script.
    statement: &'static str,
    /// The object in which the comparison must find a difference. No two changes have the same
    /// object, so one script can contain all of them and none hides another.
    object: &'static str,
}

const BROKEN: &[Broken] = &[
    Broken {
        what: "function body",
        statement: "UPDATE pg_proc SET prosrc = prosrc || ' ' WHERE proname = 'idem_health'",
        object: "idem_health(); Type: FUNCTION; Schema: public",
    },
    Broken {
        what: "security definer",
        statement: "ALTER FUNCTION idem_requeue(text, text) SECURITY INVOKER",
        object: "idem_requeue(text, text); Type: FUNCTION; Schema: public",
    },
    Broken {
        what: "function setting",
        statement: "ALTER FUNCTION idem.kinds_of_role(regrole) RESET search_path",
        object: "kinds_of_role(regrole); Type: FUNCTION; Schema: idem",
    },
    Broken {
        what: "volatility",
        statement: "ALTER FUNCTION idem.granted_admin() STABLE",
        object: "granted_admin(); Type: FUNCTION; Schema: idem",
    },
    Broken {
        what: "default of an argument",
        statement: "CREATE OR REPLACE FUNCTION idem_claim(
                id uuid, destination text, wait boolean DEFAULT false,
                fingerprint bytea DEFAULT NULL, sent_at timestamptz DEFAULT NULL,
                OUT outcome idem_outcome, OUT handled_at timestamptz)
            LANGUAGE c AS 'MODULE_PATHNAME', 'idem_claim_uuid_wrapper'",
        object: "idem_claim(uuid, text, boolean, bytea, timestamp with time zone); \
                 Type: FUNCTION; Schema: public",
    },
    Broken {
        what: "grant",
        statement: "REVOKE EXECUTE ON FUNCTION idem.note_pending(bigint) FROM PUBLIC",
        object: "FUNCTION note_pending(seq bigint); Type: ACL; Schema: idem",
    },
    Broken {
        what: "additional grant",
        statement: "GRANT EXECUTE ON FUNCTION idem_health() TO PUBLIC",
        object: "FUNCTION idem_health(); Type: ACL; Schema: public",
    },
    Broken {
        what: "comment",
        statement: "COMMENT ON COLUMN idem.clock.ran IS NULL",
        object: "COLUMN clock.ran; Type: COMMENT; Schema: idem",
    },
    Broken {
        what: "default of a column",
        statement: "ALTER TABLE idem.ring ALTER COLUMN rotations SET DEFAULT 1",
        object: "ring; Type: TABLE; Schema: idem",
    },
    Broken {
        what: "check constraint",
        statement: "ALTER TABLE idem.clock DROP CONSTRAINT clock_is_one_row",
        object: "clock; Type: TABLE; Schema: idem",
    },
    Broken {
        what: "storage parameter",
        statement: "ALTER TABLE idem.payload_3 RESET (autovacuum_vacuum_insert_threshold)",
        object: "payload_3; Type: TABLE; Schema: idem",
    },
    Broken {
        what: "owner",
        statement: "ALTER TABLE idem.delayed OWNER TO pg_monitor",
        object: "delayed; Type: TABLE; Schema: idem",
    },
    Broken {
        what: "index",
        statement: "DROP INDEX idem.outbox_2_tx",
        object: "outbox_2_tx; Type: INDEX; Schema: idem",
    },
    Broken {
        what: "primary key",
        statement: "ALTER TABLE idem.inbox_long_1 DROP CONSTRAINT inbox_long_1_pkey",
        object: "inbox_long_1 inbox_long_1_pkey; Type: CONSTRAINT; Schema: idem",
    },
    Broken {
        what: "trigger",
        statement: "ALTER TABLE idem.ring ENABLE TRIGGER publish",
        object: "ring publish; Type: TRIGGER; Schema: idem",
    },
    Broken {
        what: "view",
        statement: "ALTER VIEW idem.payload_row SET (security_barrier)",
        object: "payload_row; Type: VIEW; Schema: idem",
    },
    Broken {
        what: "enum",
        statement: "ALTER TYPE idem_call_state RENAME VALUE 'failed' TO 'lost'",
        object: "idem_call_state; Type: TYPE; Schema: public",
    },
    Broken {
        what: "sequence",
        statement: "ALTER SEQUENCE idem.outbox_seq CACHE 2",
        object: "outbox_seq; Type: SEQUENCE; Schema: idem",
    },
    Broken {
        what: "state of a sequence",
        statement: "SELECT setval('idem.outbox_seq', 7)",
        object: "state of idem.outbox_seq",
    },
    Broken {
        what: "membership",
        statement: "ALTER EXTENSION idem DROP TABLE idem.maintenance_error",
        object: "maintenance_error; Type: TABLE; Schema: idem",
    },
    Broken {
        what: "configuration table",
        statement: "SELECT pg_extension_config_dump('idem.relay', '')",
        object: "configuration tables",
    },
    Broken {
        what: "row",
        statement: "UPDATE idem.ring SET retention = '8 days' WHERE name = 'standard'",
        object: "rows of idem.ring",
    },
    Broken {
        what: "additional object",
        statement: "CREATE VIEW idem.additional AS SELECT 1",
        object: "additional; Type: VIEW; Schema: idem",
    },
];

/// Goal: the comparison finds each of these differences, and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_broken_object_is_detected() -> Result<()> {
    let copy = PrivateInstall::new()?;
    let intact = built_script(&Install::from_env()?)?;
    let mut broken = intact.clone();
    for change in BROKEN {
        writeln!(broken, "-- {}\n{};", change.what, change.statement)?;
    }
    copy.add("broken", &broken)?;
    let cluster = copy.start()?;
    let intact = install(&cluster, VERSION).await?;
    let broken = install(&cluster, "broken").await?;
    let found: BTreeSet<_> = differences(&intact, &broken).into_iter().collect();
    let expected: BTreeSet<_> = BROKEN.iter().map(|change| change.object).collect();
    assert_eq!(
        expected.len(),
        BROKEN.len(),
        "two changes have the same object"
    );
    assert_eq!(found, expected);
    Ok(())
}
