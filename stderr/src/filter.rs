//! Parsing of log filters.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// Parses a log filter: a level, or a list of target=level. Appends the directives of `quiet`.
///
/// # Errors
///
/// A message that says why `text` is not a filter.
pub fn filter<'a>(text: &'a str, quiet: impl IntoIterator<Item = &'a str>) -> Result<EnvFilter, String> {
    for directive in text.split(',').map(str::trim) {
        // EnvFilter takes any word for a target to log at all levels, even a mistyped level.
        let is_word =
            !directive.is_empty() && directive.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if is_word && directive.parse::<LevelFilter>().is_err() {
            return Err(format!(
                "`{directive}` is not a level (error, warn, info, debug, trace, off); a target is given as {directive}=LEVEL"
            ));
        }
    }
    if text.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    let directives: Vec<&str> = std::iter::once(text).chain(quiet).collect();
    // No regular expressions: a client of the admin endpoints could set a costly one.
    let parsed = EnvFilter::builder().with_regex(false).parse(directives.join(","));
    parsed.map_err(|error| error.to_string())
}
