//! Tests of the committed install script: the build makes the same bytes, and the script creates
//! the same objects.
//!
//! The test compares the output of `pg_dump --binary-upgrade` for both scripts. pg_upgrade creates
//! a database from this output alone, so the output has every property of every object. It also
//! creates each member of an extension, with its membership, privileges and initial privileges.
//! Queries of the catalogs would compare only the properties that their author knew.
//!
//! The comparison of the bytes shows that the committed script is the current one. The comparison
//! of the catalogs shows that the committed script installs the extension by itself, and names the
//! objects that differ. Blocks in the script create objects in loops, so a difference of the text
//! does not name the objects.
//!
//! The script of the build and a broken script are further versions of the extension in a private
//! copy of PostgreSQL. An upgrade from the previous version is compared with a new installation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use idem_cluster::{Cluster, Install, workspace_root};
use idem_testkit::Session;

use idem_testkit::private_install::{PREVIOUS, PrivateInstall, create};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The name of the version whose script is that of the build.
const BUILT: &str = "built";

const ADVICE: &str = "run `cargo xtask snapshot` and commit sql/install";

fn built_script(install: &Install) -> PathBuf {
    let directory = install.share_dir().join("extension");
    directory.join(format!("idem--{VERSION}.sql"))
}

fn committed_script() -> PathBuf {
    workspace_root().join(format!("sql/install/idem--{VERSION}.sql"))
}

fn read(path: &PathBuf) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}: {ADVICE}", path.display()))
}

/// Fails when the scripts differ. The message has the first line that differs.
fn ensure_same_script(built: &str, committed: &str) -> Result<()> {
    let different = built.lines().zip(committed.lines()).enumerate();
    let mut different = different.filter(|(_, (built, committed))| built != committed);
    let place = match different.next() {
        Some((n, (built, committed))) => {
            format!(
                "line {}:\n  built:     {built}\n  committed: {committed}",
                n + 1
            )
        }
        None => "the length".to_owned(),
    };
    ensure!(
        built == committed,
        "the committed install script is not the one that the build makes: {ADVICE}.\n\
         The first difference is {place}"
    );
    Ok(())
}

/// Goal: what the packages install is what is committed.
#[test]
fn committed_script_is_the_one_that_the_build_makes() -> Result<()> {
    let install = Install::from_env()?;
    ensure_same_script(&read(&built_script(&install))?, &read(&committed_script())?)
}

#[test]
fn each_other_script_is_detected_and_the_command_named() -> Result<()> {
    let script = read(&committed_script())?;
    for (broken, place) in [
        (script.replacen("SECURITY DEFINER ", "", 1), "line "),
        (
            script.replace("'standard', '7 days'", "'standard', '8 days'"),
            "line ",
        ),
        (format!("{script}SELECT 1;\n"), "the length"),
        (script.trim_end().to_owned(), "the length"),
    ] {
        let error = ensure_same_script(&script, &broken)
            .unwrap_err()
            .to_string();
        ensure!(
            error.contains("`cargo xtask snapshot`") && error.contains(&format!("is {place}")),
            "{error}"
        );
    }
    Ok(())
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
                        ('timestamptz'::regtype, 'xid8'::regtype)), '{}')
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

/// Goal: the committed script creates the objects that the script of the build creates.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn committed_script_creates_what_the_build_creates() -> Result<()> {
    let copy = PrivateInstall::new()?;
    copy.add(BUILT, &read(&built_script(&Install::from_env()?))?)?;
    copy.add(VERSION, &read(&committed_script())?)?;
    let cluster = copy.start()?;
    let built = install(&cluster, BUILT).await?;
    let committed = install(&cluster, VERSION).await?;
    show_differences(("built", &built), ("committed", &committed));
    assert_eq!(differences(&built, &committed), [""; 0], "{ADVICE}");
    Ok(())
}

fn show_differences((a_name, a): (&str, &Catalog), (b_name, b): (&str, &Catalog)) {
    let text = |catalog: &Catalog, header| catalog.get(header).cloned().unwrap_or_default();
    for header in differences(a, b) {
        let (a, b) = (text(a, header), text(b, header));
        eprintln!("{header}\n--- {a_name}:\n{a}\n--- {b_name}:\n{b}");
    }
}

/// Goal: an upgrade makes the objects of a new installation. Only the order of the slices differs:
/// the added slices are the oldest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrade_makes_the_objects_of_a_new_installation() -> Result<()> {
    let copy = PrivateInstall::with_previous()?;
    let cluster = copy.start()?;
    create(&cluster, "upgraded", PREVIOUS).await?;
    let session = Session::superuser(&cluster, "upgraded").await?;
    session.run("ALTER EXTENSION idem UPDATE").await?;
    let mut upgraded = catalog(&cluster, "upgraded").await?;
    let mut new = install(&cluster, VERSION).await?;
    for catalog in [&mut upgraded, &mut new] {
        catalog.remove("rows of idem.ring");
    }
    let rings = "SELECT id, name, retention, ARRAY(SELECT n FROM unnest(slices) n ORDER BY n),
                        opened, started, rotations, rotated_at, remembers_since, opening, emptying
                   FROM idem.ring ORDER BY id";
    let fresh = Session::superuser(&cluster, &VERSION.replace('.', "_")).await?;
    assert_eq!(session.text(rings).await?, fresh.text(rings).await?);
    show_differences(("upgraded", &upgraded), ("new", &new));
    assert_eq!(differences(&upgraded, &new), [""; 0]);
    Ok(())
}

/// I9: default privileges that grant more do not apply to the objects that an upgrade adds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i9_upgrade_grants_nothing_by_default_privileges() -> Result<()> {
    let copy = PrivateInstall::with_previous()?;
    let cluster = copy.start()?;
    create(&cluster, "upgraded", PREVIOUS).await?;
    let session = Session::superuser(&cluster, "upgraded").await?;
    session
        .run(
            "CREATE ROLE other;
             ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO other;
             ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC;
             ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO other",
        )
        .await?;
    let granted = "
        SELECT count(*) FROM pg_depend d JOIN pg_extension x ON x.oid = d.refobjid
          LEFT JOIN pg_proc f ON d.classid = 'pg_proc'::regclass AND f.oid = d.objid
          LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
         CROSS JOIN aclexplode(CASE WHEN f.oid IS NULL THEN c.relacl
                                    ELSE coalesce(f.proacl, acldefault('f', f.proowner)) END) a
         WHERE x.extname = 'idem' AND d.deptype = 'e'
           AND (a.grantee = 'other'::regrole
                OR a.grantee = 0 AND f.proname IS DISTINCT FROM 'note_pending')";
    assert_eq!(session.text(granted).await?, "0");
    session.run("ALTER EXTENSION idem UPDATE").await?;
    assert_eq!(session.text(granted).await?, "0");
    Ok(())
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
    let intact = read(&committed_script())?;
    let mut broken = intact.clone();
    for change in BROKEN {
        writeln!(broken, "-- {}\n{};", change.what, change.statement)?;
    }
    copy.add(VERSION, &intact)?;
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
