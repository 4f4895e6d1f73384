//! Commands and files in the fenced blocks of documentation, for tests that run and use them.

use std::collections::BTreeSet;

/// Command and its shown output.
#[derive(Debug, PartialEq, Eq)]
pub struct Example {
    /// Command without the prompt.
    pub command: String,
    /// Lines of the output, without trailing white space.
    pub output: Vec<String>,
}

/// Returns the commands in fenced blocks, of any program. A backslash at the end of a line
/// continues it.
pub fn examples(markdown: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut in_block = false;
    let mut of_this_block = 0;
    for line in markdown.replace("\\\n", "").lines() {
        let line = line.trim_end();
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
            of_this_block = examples.len();
        } else if in_block && line.starts_with("$ ") {
            examples.push(Example { command: line["$ ".len()..].to_owned(), output: Vec::new() });
        } else if in_block
            && examples.len() > of_this_block
            && let Some(example) = examples.last_mut()
        {
            example.output.push(line.to_owned());
        }
    }
    for example in &mut examples {
        while example.output.last().is_some_and(String::is_empty) {
            example.output.pop();
        }
    }
    examples
}

/// Returns the texts of the fenced blocks.
pub fn blocks(markdown: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<String> = None;
    for line in markdown.lines() {
        if line.trim_start().starts_with("```") {
            match open.take() {
                Some(block) => blocks.push(block),
                None => open = Some(String::new()),
            }
        } else if let Some(block) = &mut open {
            block.push_str(line);
            block.push('\n');
        }
    }
    blocks
}

/// Metric in a table: its name without the suffix of its type (`_total`, `_info`), and its labels.
pub type Metric = (String, BTreeSet<String>);

/// Returns the metrics in a page's table, except those of every process. In a row, `…` stands for
/// the common prefix, taken from its first metric.
pub fn metrics(page: &str) -> Vec<Metric> {
    let rows = page.lines().filter(|line| line.starts_with("| `multinet_"));
    rows.flat_map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let labels: BTreeSet<String> =
            cells[2].split(", ").filter(|label| !label.is_empty()).map(ToOwned::to_owned).collect();
        let names: Vec<&str> = cells[1].split('`').skip(1).step_by(2).collect();
        let prefix = names[0].split('_').take(2).collect::<Vec<_>>().join("_");
        names
            .into_iter()
            .filter(|name| !name.starts_with("process_") && !name.ends_with('…'))
            .map(|name| name.replace('…', &prefix))
            .map(|name| name.trim_end_matches("_total").trim_end_matches("_info").to_owned())
            .map(|name| (name, labels.clone()))
            .collect::<Vec<_>>()
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
text
```console
$ one \\
    more
1
2

$ two
```
$ not here
```
output of nothing
```
";

    #[test]
    fn commands_are_parsed_with_their_output() {
        let example = |command: &str, output: &[&str]| Example {
            command: command.to_owned(),
            output: output.iter().map(|line| (*line).to_owned()).collect(),
        };
        assert_eq!(examples(TEXT), [example("one     more", &["1", "2"]), example("two", &[])]);
    }

    #[test]
    fn fenced_blocks_are_extracted() {
        assert_eq!(blocks(TEXT), ["$ one \\\n    more\n1\n2\n\n$ two\n", "output of nothing\n"]);
    }

    #[test]
    fn metrics_of_a_table_are_parsed_with_their_labels() {
        let table = "| metric | labels | what |\n| `multinet_dns_a_total`, `…_b` | proto, type | `c` |\n\
                     | `multinet_watch_…`, `multinet_build_info`, `process_…` | | |\n";
        let both = ["proto", "type"].map(ToOwned::to_owned);
        let metric = |name: &str, labels: &[String]| (name.to_owned(), labels.iter().cloned().collect());
        let expected =
            [metric("multinet_dns_a", &both), metric("multinet_dns_b", &both), metric("multinet_build", &[])];
        assert_eq!(metrics(table), expected);
    }
}
