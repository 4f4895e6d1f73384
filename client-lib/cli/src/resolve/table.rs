//! Endpoints as aligned columns. Pure.

use multinet_client::{Endpoint, EndpointAddress};
use multinet_stderr::TerminalSafe;

use super::change::{Difference, EndpointChange};

const COLUMNS: [&str; 10] =
    ["HOST", "ADDRESS", "NETWORK", "PORT", "RDMA", "NUMA", "PCI", "NODE", "ZONE", "POD"];

type Row = [String; COLUMNS.len()];

/// A table that may grow. Its columns never become narrower, so that later rows stand below earlier
/// ones.
#[derive(Debug, Default)]
pub(super) struct Table {
    widths: [usize; COLUMNS.len()],
    /// Whether the head of the table has been printed, with rows below it.
    has_rows: bool,
    is_begun: bool,
}

impl Table {
    /// Returns the table of all endpoints: the head, and a row for each address; empty without
    /// endpoints.
    pub(super) fn text(&mut self, endpoints: &[Endpoint]) -> String {
        let rows = endpoints.iter().flat_map(rows).map(|row| ("", row)).collect();
        self.lines("", rows)
    }

    /// Returns a row with a mark for each change, and the head before the first row.
    pub(super) fn changes(&mut self, changes: &[Difference<'_>]) -> String {
        let marked = |(kind, endpoint): &Difference<'_>| {
            let mark = match kind {
                EndpointChange::Added => "+ ",
                EndpointChange::Removed => "- ",
                EndpointChange::Changed => "~ ",
            };
            rows(endpoint).map(move |row| (mark, row)).collect::<Vec<_>>()
        };
        self.lines("  ", changes.iter().flat_map(marked).collect())
    }

    /// Returns the head alone for an empty set, if nothing has been printed before.
    pub(super) fn empty(&mut self) -> String {
        if std::mem::replace(&mut self.is_begun, true) {
            String::new()
        } else {
            self.written(vec![head("  ")])
        }
    }

    fn lines(&mut self, indent: &'static str, mut rows: Vec<(&'static str, Row)>) -> String {
        if rows.is_empty() {
            return String::new();
        }
        self.is_begun = true;
        if !std::mem::replace(&mut self.has_rows, true) {
            rows.insert(0, head(indent));
        }
        self.written(rows)
    }

    fn written(&mut self, rows: Vec<(&'static str, Row)>) -> String {
        for (_, row) in &rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let mut text = String::new();
        for (mark, row) in rows {
            let cells: Vec<String> =
                row.iter().zip(self.widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            text.push_str(mark);
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

fn head(indent: &'static str) -> (&'static str, Row) {
    (indent, COLUMNS.map(str::to_owned))
}

/// Returns a row of the table for each address of an endpoint.
fn rows(endpoint: &Endpoint) -> impl Iterator<Item = Row> {
    endpoint.addresses.iter().map(move |address| row(endpoint, address))
}

fn row(endpoint: &Endpoint, address: &EndpointAddress) -> Row {
    let known = |text: Option<&str>| text.unwrap_or("-").to_owned();
    let rdma = address.rdma_devices.join(",");
    let pod = endpoint.pod.as_ref().and_then(|pod| match (&pod.namespace, &pod.name) {
        (Some(namespace), Some(name)) => Some(format!("{namespace}/{name}")),
        (_, name) => name.clone(),
    });
    [
        endpoint.host.clone(),
        address.ip.to_string(),
        known(address.network.as_deref()),
        endpoint.port.to_string(),
        known(Some(rdma.as_str()).filter(|devices| !devices.is_empty())),
        known(address.numa.map(|numa| numa.to_string()).as_deref()),
        known(address.pci.as_deref()),
        known(endpoint.node.as_deref()),
        known(endpoint.zone.as_deref()),
        known(pod.as_deref()),
    ]
    // Others write what DNS says: it must not steer the terminal.
    .map(|cell| TerminalSafe(&cell).to_string())
}
