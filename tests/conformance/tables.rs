//! The golden tables. Each has its own server with all fixtures.

use anyhow::{Result, ensure};
use multinet_testing::server::Flags;

use crate::fixtures::folder;
use crate::table::Table;

/// Defines a test for each table, and a list of all tables.
macro_rules! tables {
    ($($name:ident),* $(,)?) => {
        pub(crate) const TABLES: &[(&str, &str)] =
            &[$((concat!(stringify!($name), ".txt"), include_str!(concat!("tables/", stringify!($name), ".txt")))),*];
        $(
            #[test]
            fn $name() -> Result<()> {
                run(include_str!(concat!("tables/", stringify!($name), ".txt")))
            }
        )*
    };
}

tables![
    apex, case, classes, details, edns, headless, names, networks, ports, readiness, reverse, rfc8906, tree,
    ttl, two_zones, v6, weights, zonal
];

fn run(table: &str) -> Result<()> {
    let table = Table::parse(table)?;
    let server = Flags::new().words("--answer-order fixed").words(&table.flags).start(&folder())?;
    let failures: Vec<String> = table
        .cases
        .iter()
        .filter_map(|case| {
            let checked = case.check(&server, &table.origin);
            checked.and_then(|()| case.check_mixed_case(&server)).err()
        })
        .map(|error| format!("{error:#}"))
        .collect();
    ensure!(
        failures.is_empty(),
        "{} of {} rows\n\n{}",
        failures.len(),
        table.cases.len(),
        failures.join("\n")
    );
    Ok(())
}

#[test]
fn every_table_is_run() -> Result<()> {
    let mut files = Vec::new();
    for entry in folder().with_file_name("tables").read_dir()? {
        files.push(entry?.file_name().to_string_lossy().into_owned());
    }
    files.sort_unstable();
    let run: Vec<&str> = TABLES.iter().map(|(name, _)| *name).collect();
    ensure!(files == run, "the files are {files:?}, but the tests {run:?}");

    let mut rows = 0;
    for (_, table) in TABLES {
        rows += Table::parse(table)?.cases.len();
    }
    println!("{rows} rows");
    ensure!(rows >= 130, "only {rows} rows were found");
    Ok(())
}
