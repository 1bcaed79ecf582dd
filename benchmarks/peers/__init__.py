"""The same work in other libraries. A module is imported only where its library is installed."""
