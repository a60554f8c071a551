"""Cannot be imported, and says so with markup."""

raise ImportError("missing <script>document.title='taken'</script>, install it")
